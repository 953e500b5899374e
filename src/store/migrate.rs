//! The schema: migrations, operations' setup scripts, and whether program and schema fit.

use std::path::PathBuf;

use postgres::Client;
use refinery::{Migration, Runner};

use super::fault::{chain, classify, sources};
use super::prepare::{Place, in_file};
use super::settings::{UNLIMITED, quote_identifier};
use crate::operations::{Operation, Script};
use crate::outcome::Fault;

/// The files of `migrations/`: name and text. Append-only once released.
const MIGRATIONS: &[(&str, &str)] =
    &[("0001_records_and_outbox", include_str!("../../migrations/0001_records_and_outbox.sql"))];

/// The table of what was applied, in the configured schema.
const HISTORY: &str = "onced_migrations";

/// The tables that the daemon reads and writes, and those that it only reads.
const WRITTEN_TABLES: [&str; 5] = [
    "idempotency_records",
    "idempotency_tombstones",
    "idempotency_audit",
    "outbox_events",
    "outbox_sink",
];
const READ_TABLES: [&str; 2] = ["onced_migrations", "onced_schema"];

/// One migration at a time for a schema: held by the session, so that a crash lets go of it.
pub(super) const LOCK_MIGRATION: &str = "SELECT pg_advisory_lock(1868785508, hashtext($1))";

/// Lets go of [`LOCK_MIGRATION`].
pub(super) const UNLOCK_MIGRATION: &str = "SELECT pg_advisory_unlock(1868785508, hashtext($1))";

/// What the role may do in a schema; no row where there is none.
pub(super) const SCHEMA_RIGHTS: &str = "\
SELECT has_schema_privilege(oid, 'CREATE') AS may_create,
       has_schema_privilege(oid, 'USAGE') AS may_use,
       current_user::text AS role,
       nspname = current_schema() AS is_current
FROM pg_namespace
WHERE nspname = $1";

/// Where the session's tables are, and whether the history is among them.
pub(super) const LOCATE_HISTORY: &str = "\
SELECT current_setting('search_path') AS search_path,
       to_regclass('onced_migrations') IS NOT NULL AS is_migrated";

/// The applied migrations.
pub(super) const APPLIED_VERSIONS: &str = "SELECT version FROM onced_migrations ORDER BY version";

/// The oldest program that the schema takes.
pub(super) const MINIMUM_VERSION: &str =
    "SELECT value FROM onced_schema WHERE name = 'minimum_version'";

/// The tables and sequences on which the role lacks a right: `$1` are read and written, `$2` only read.
pub(super) const MISSING_RIGHTS: &str = "\
SELECT current_user::text AS role, 'TEMP on the database' AS relation
WHERE NOT has_database_privilege(current_database(), 'TEMP')
UNION ALL
SELECT current_user::text AS role, relname::text AS relation
FROM pg_class
WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
  AND NOT CASE
      WHEN relkind = 'S' THEN regexp_replace(relname, '_id_seq$', '') <> ALL ($1)
                               OR has_sequence_privilege(oid, 'USAGE')
      WHEN relname = ANY ($1) THEN has_table_privilege(oid, 'SELECT')
                               AND has_table_privilege(oid, 'INSERT')
                               AND has_table_privilege(oid, 'UPDATE')
                               AND has_table_privilege(oid, 'DELETE')
      WHEN relname = ANY ($2) THEN has_table_privilege(oid, 'SELECT')
      ELSE true
  END
ORDER BY relation";

/// Whether a setup script left its transaction open, as it should.
pub(super) const SETUP_MARK: &str = "SELECT current_setting('onced.setup', true) AS mark";

/// What [`migrate`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The migrations that were applied, by file name without its ending; empty where the schema was up to date.
    pub migrations: Vec<String>,
    /// The setup scripts that ran, in the order of the operations.
    pub setups: Vec<PathBuf>,
}

/// Why a migration failed. What came before it stands; running it again goes on from there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MigrateError {
    /// The role may not make the schema.
    #[error(
        "the schema {schema:?} does not exist and role {role:?} may not create it: run CREATE SCHEMA {schema:?} \
         AUTHORIZATION {role:?} as an administrator"
    )]
    NoSchema {
        /// The configured schema.
        schema: String,
        /// The role of the connection.
        role: String,
    },
    /// The role may not make tables in the schema.
    #[error(
        "role {role:?} may not create tables in the schema {schema:?}: run GRANT USAGE, CREATE ON SCHEMA {schema:?} \
         TO {role:?} as its owner, or migrate with another role and GRANT this one the tables"
    )]
    NoCreate {
        /// The configured schema.
        schema: String,
        /// The role of the connection.
        role: String,
    },
    /// The connection's `search_path` does not begin with the schema.
    #[error("the session's tables would not be made in the schema {0:?}")]
    OtherSchema(String),
    /// The schema does not take this program.
    #[error(transparent)]
    Schema(#[from] SchemaProblem),
    /// A migration could not be applied; nothing of it was.
    #[error("a migration failed, nothing was changed: {0}")]
    Migration(String),
    /// An operation's setup script failed; nothing of it was done.
    #[error("{}: {message}", in_file(path, *at))]
    Setup {
        /// The script's file.
        path: PathBuf,
        /// Where in it, as far as PostgreSQL said.
        at: Option<Place>,
        /// What PostgreSQL said.
        message: String,
    },
    /// The database cannot be worked with now.
    #[error("the database failed: {0}")]
    Fault(#[from] Fault),
}

/// Why program and schema do not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaProblem {
    /// There are no tables of ours.
    #[error(
        "the database was never migrated: there is no table onced_migrations in {search_path}; run `onced migrate` \
         (or, where it was, GRANT USAGE on its schema to this role)"
    )]
    NeverMigrated {
        /// The session's `search_path`.
        search_path: String,
    },
    /// The schema is older than the program.
    #[error(
        "this program brings {program} migrations and the schema has {applied} of them: run `onced migrate`"
    )]
    Behind {
        /// Migrations of this program.
        program: usize,
        /// Those of them that were applied.
        applied: usize,
    },
    /// The schema asks for a newer program.
    #[error(
        "the schema asks for onced {minimum} or later and this is {program}: upgrade this program; older ones can \
         go on only until the schema is migrated past them"
    )]
    NeedsNewer {
        /// What the schema asks for.
        minimum: String,
        /// This program's version.
        program: String,
    },
    /// The role lacks rights on tables.
    #[error(
        "role {role:?} lacks rights on {}: run GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA … TO \
         {role:?}, and USAGE ON ALL SEQUENCES, as their owner",
        tables.join(", ")
    )]
    NoRights {
        /// The role of the connection.
        role: String,
        /// The tables.
        tables: Vec<String>,
    },
    /// The database cannot be asked now.
    #[error("the schema cannot be checked: {0}")]
    Fault(#[from] Fault),
}

/// Brings the schema up to date and runs the operations' setup scripts. Any number may run at once: they wait for each
/// other. `client` is best one of [`super::connect`], whose statements have no time limit, with `schema` first in its
/// search path.
pub fn migrate(
    client: &mut Client,
    schema: &str,
    operations: &[Operation],
) -> Result<Report, MigrateError> {
    client.query(LOCK_MIGRATION, &[&schema]).map_err(|error| classify(&error))?;
    let done = migrate_alone(client, schema, operations);
    let unlocked = client.query(UNLOCK_MIGRATION, &[&schema]).map_err(|error| classify(&error));
    let report = done?;
    unlocked?;
    Ok(report)
}

fn migrate_alone(
    client: &mut Client,
    schema: &str,
    operations: &[Operation],
) -> Result<Report, MigrateError> {
    let mut report = Report::default();
    match check_version(client) {
        Ok(()) => {}
        Err(SchemaProblem::NeverMigrated { .. } | SchemaProblem::Behind { .. }) => {
            prepare_schema(client, schema)?;
            report.migrations = apply(client)?;
        }
        Err(
            problem @ (SchemaProblem::NeedsNewer { .. }
            | SchemaProblem::NoRights { .. }
            | SchemaProblem::Fault(_)),
        ) => return Err(problem.into()),
    }
    for script in operations.iter().filter_map(|operation| operation.setup.as_ref()) {
        run_setup(client, script)?;
        report.setups.push(script.path.clone());
    }
    Ok(report)
}

/// Sees to it that tables can be made in the schema.
fn prepare_schema(client: &mut Client, schema: &str) -> Result<(), MigrateError> {
    let rights = |client: &mut Client| {
        client.query_opt(SCHEMA_RIGHTS, &[&schema]).map_err(|error| classify(&error))
    };
    let mut found = rights(client)?;
    if found.is_none() {
        let create = format!("CREATE SCHEMA {}", quote_identifier(schema));
        if let Err(error) = client.batch_execute(&create) {
            return Err(create_refused(client, schema, &error));
        }
        found = rights(client)?;
    }
    let Some(row) = found else { return Err(MigrateError::OtherSchema(schema.to_owned())) };
    if !(row.get::<_, bool>("may_create") && row.get::<_, bool>("may_use")) {
        return Err(MigrateError::NoCreate { schema: schema.to_owned(), role: row.get("role") });
    }
    if row.get::<_, Option<bool>>("is_current") != Some(true) {
        return Err(MigrateError::OtherSchema(schema.to_owned()));
    }
    Ok(())
}

fn create_refused(client: &mut Client, schema: &str, error: &postgres::Error) -> MigrateError {
    let fault = classify(error);
    if fault.sqlstate.as_deref() != Some("42501") {
        return fault.into();
    }
    match client.query_one("SELECT current_user::text", &[]) {
        Ok(row) => MigrateError::NoSchema { schema: schema.to_owned(), role: row.get(0) },
        Err(error) => classify(&error).into(),
    }
}

/// Applies what is missing, all of it in one transaction with the history.
fn apply(client: &mut Client) -> Result<Vec<String>, MigrateError> {
    let migrations = migrations().map_err(|error| migration_failed(&error))?;
    let mut runner = Runner::new(&migrations).set_grouped(true).set_abort_missing(true);
    let applied = runner
        .set_migration_table_name(HISTORY)
        .run(client)
        .map_err(|error| migration_failed(&error))?;
    let versions: Vec<i32> = applied.applied_migrations().iter().map(Migration::version).collect();
    let names = MIGRATIONS.iter().map(|(name, _)| *name);
    Ok(names.filter(|name| versions.contains(&number(name))).map(str::to_owned).collect())
}

fn migration_failed(error: &refinery::Error) -> MigrateError {
    let server = sources(error).find_map(|source| source.downcast_ref::<postgres::Error>());
    MigrateError::Migration(
        server.map_or_else(|| chain(error), |error| classify(error).to_string()),
    )
}

fn migrations() -> Result<Vec<Migration>, refinery::Error> {
    MIGRATIONS
        .iter()
        .map(|(name, sql)| {
            let title = name.split_once('_').map_or(*name, |(_, title)| title);
            Migration::unapplied(&format!("V{}__{title}", number(name)), sql)
        })
        .collect()
}

/// The number that a migration's name begins with.
fn number(name: &str) -> i32 {
    let digits = name.split('_').next().unwrap_or_default();
    digits.parse().expect("the names of our migrations begin with a number")
}

/// Runs a setup script in a transaction of its own.
fn run_setup(client: &mut Client, script: &Script) -> Result<(), MigrateError> {
    let failed = |error: &postgres::Error| setup_failed(script, error);
    let mut transaction = client.transaction().map_err(|error| failed(&error))?;
    // Gone where the script ends the transaction: then what it did was not done as one.
    transaction.batch_execute("SET LOCAL onced.setup = 'open'").map_err(|error| failed(&error))?;
    transaction.batch_execute(&script.sql).map_err(|error| failed(&error))?;
    let row = transaction.query_one(SETUP_MARK, &[]).map_err(|error| failed(&error))?;
    if row.get::<_, Option<&str>>("mark") != Some("open") {
        return Err(MigrateError::Setup {
            path: script.path.clone(),
            at: None,
            message: "it ends its transaction by itself: leave BEGIN, COMMIT, RESET ALL and the like out; the \
                      script runs in a transaction"
                .to_owned(),
        });
    }
    transaction.commit().map_err(|error| failed(&error))?;
    // The next script must not run under this one's settings.
    let reset = format!("RESET ROLE; RESET ALL; {UNLIMITED}");
    client.batch_execute(&reset).map_err(|error| classify(&error).into())
}

fn setup_failed(script: &Script, error: &postgres::Error) -> MigrateError {
    MigrateError::Setup {
        path: script.path.clone(),
        at: Place::of_error(error, &script.sql),
        message: classify(error).to_string(),
    }
}

/// Whether this program can work with the schema. A newer schema that does not ask for a newer program is served.
pub fn check_schema(client: &mut Client) -> Result<(), SchemaProblem> {
    check_version(client)?;
    let missing = client
        .query(MISSING_RIGHTS, &[&&WRITTEN_TABLES[..], &&READ_TABLES[..]])
        .map_err(|error| classify(&error))?;
    match missing.first() {
        None => Ok(()),
        Some(row) => Err(SchemaProblem::NoRights {
            role: row.get("role"),
            tables: missing.iter().map(|row| row.get("relation")).collect(),
        }),
    }
}

fn check_version(client: &mut Client) -> Result<(), SchemaProblem> {
    let ask = |error: postgres::Error| SchemaProblem::Fault(classify(&error));
    let located = client.query_one(LOCATE_HISTORY, &[]).map_err(ask)?;
    if !located.get::<_, bool>("is_migrated") {
        return Err(SchemaProblem::NeverMigrated { search_path: located.get("search_path") });
    }
    let rows = client.query(APPLIED_VERSIONS, &[]).map_err(ask)?;
    let versions: Vec<i32> = rows.iter().map(|row| row.get("version")).collect();
    let applied = MIGRATIONS.iter().filter(|(name, _)| versions.contains(&number(name))).count();
    if applied > 0
        && let Some(row) = client.query_opt(MINIMUM_VERSION, &[]).map_err(ask)?
    {
        let minimum: String = row.get("value");
        let program = env!("CARGO_PKG_VERSION");
        if !is_at_least(program, &minimum) {
            return Err(SchemaProblem::NeedsNewer { minimum, program: program.to_owned() });
        }
    }
    if applied < MIGRATIONS.len() {
        return Err(SchemaProblem::Behind { program: MIGRATIONS.len(), applied });
    }
    Ok(())
}

/// Whether `version` is `minimum` or comes after it, by the order of Semantic Versioning. A minimum that is no version
/// is one that this program does not understand.
fn is_at_least(version: &str, minimum: &str) -> bool {
    match (semver::Version::parse(version), semver::Version::parse(minimum)) {
        (Ok(version), Ok(minimum)) => version >= minimum,
        (Ok(_) | Err(_), Ok(_) | Err(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_is_embedded_in_order() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let embedded: Vec<String> =
            MIGRATIONS.iter().map(|(name, _)| format!("{name}.sql")).collect();
        assert_eq!(files, embedded);
        let numbers: Vec<i32> = MIGRATIONS.iter().map(|(name, _)| number(name)).collect();
        assert!(numbers.iter().copied().eq(1..=i32::try_from(numbers.len()).unwrap()));
        assert_eq!(migrations().unwrap().len(), MIGRATIONS.len());
    }

    #[test]
    fn the_rights_on_every_table_are_checked() {
        let known: Vec<&str> = WRITTEN_TABLES.into_iter().chain(READ_TABLES).collect();
        for line in MIGRATIONS.iter().flat_map(|(_, sql)| sql.lines()) {
            if let Some(rest) = line.strip_prefix("CREATE TABLE ") {
                let table = rest.split([' ', '(']).next().unwrap();
                assert!(known.contains(&table), "{table}");
            }
        }
    }

    #[test]
    fn versions_are_compared_as_versions() {
        assert!(is_at_least("0.10.0", "0.9.9"));
        assert!(is_at_least("0.1.0", "0.1.0"));
        assert!(!is_at_least("0.1.0-rc.1", "0.1.0"));
        assert!(!is_at_least("0.1.0", "0.1.1"));
        assert!(!is_at_least("1.0.0", "the next one"));
    }
}
