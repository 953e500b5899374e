use onced::store::{self, STATEMENTS, migrate::migrate};

use crate::database::{TestDatabase, database_at};

#[test]
fn every_statement_prepares() {
    let database = TestDatabase::create("statements");
    let mut client = store::connect(&database_at(&database.url)).unwrap();
    migrate(&mut client, "public", &[]).unwrap();
    for (name, sql) in STATEMENTS {
        if let Err(error) = client.prepare(sql) {
            panic!("{name}: {error:?}");
        }
    }
}
