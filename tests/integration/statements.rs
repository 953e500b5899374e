use onced::store::{STATEMENTS, events, outbox, retention};

use crate::testbed::TestDatabase;

#[test]
fn every_statement_prepares() {
    let (_database, mut client) = TestDatabase::migrated("statements");
    let all = [STATEMENTS, events::STATEMENTS, outbox::STATEMENTS, retention::STATEMENTS];
    for (name, sql) in all.into_iter().flatten() {
        if let Err(error) = client.prepare(sql) {
            panic!("{name}: {error:?}");
        }
    }
}
