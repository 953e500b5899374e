use onced::store::STATEMENTS;

use crate::testbed::TestDatabase;

#[test]
fn every_statement_prepares() {
    let (_database, mut client) = TestDatabase::migrated("statements");
    for (name, sql) in STATEMENTS {
        if let Err(error) = client.prepare(sql) {
            panic!("{name}: {error:?}");
        }
    }
}
