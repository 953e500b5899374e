//! Which PostgreSQL is installed on this machine, and where.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Chooses the directory with `postgres` and `initdb` in it.
pub const PG_BIN: &str = "ONCED_PG_BIN";
/// The oldest major version that the schema works on.
const OLDEST_MAJOR: u32 = 15;
/// Where packages put the programs of each version: below the first, in directories whose name begins with the second.
const PACKAGED: [(&str, &str); 5] = [
    ("/usr/lib/postgresql", ""),
    ("/usr/lib", "postgresql"),
    ("/usr", "pgsql-"),
    ("/opt/homebrew/opt", "postgresql"),
    ("/usr/local/opt", "postgresql"),
];

/// The programs of one PostgreSQL version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// The directory that holds them.
    pub bin: PathBuf,
    /// The major version, as 15.
    pub major: u32,
}

/// No PostgreSQL that could be used.
#[derive(Debug, thiserror::Error)]
pub enum NoInstallation {
    /// None anywhere.
    #[error(
        "no PostgreSQL server is installed here: looked in /usr/lib/postgresql/*/bin, /usr/pgsql-*/bin, Homebrew's \
         directories and PATH; install PostgreSQL {OLDEST_MAJOR} or newer (Debian, Ubuntu: `apt install postgresql`; \
         Fedora, RHEL: `dnf install postgresql-server`; macOS: `brew install postgresql`), or name the directory of \
         `postgres` and `initdb` in {PG_BIN}"
    )]
    Nowhere,
    /// The chosen directory holds none.
    #[error("{PG_BIN} is {}, where there are no programs `postgres` and `initdb` that run", .0.display())]
    NotThere(PathBuf),
    /// Only versions that are too old.
    #[error("PostgreSQL {found} in {} is too old: onced needs {OLDEST_MAJOR} or newer", .bin.display())]
    TooOld {
        /// The newest one found.
        found: u32,
        /// Where.
        bin: PathBuf,
    },
    /// The data needs a version that is not there.
    #[error(
        "the data was made by PostgreSQL {wanted}, and only {found} is installed: install PostgreSQL {wanted} again, \
         or move the data away to begin anew"
    )]
    OtherVersion {
        /// The version that made the data.
        wanted: u32,
        /// The newest one found.
        found: u32,
    },
}

impl Installation {
    /// The one that `ONCED_PG_BIN` names, else the newest one that is packaged, else the one in `PATH`; of the major
    /// version `wanted` where existing data asks for one.
    pub fn find(wanted: Option<u32>) -> Result<Installation, NoInstallation> {
        let found = match std::env::var_os(PG_BIN) {
            Some(bin) => {
                let bin = PathBuf::from(bin);
                vec![Installation::at(&bin).ok_or(NoInstallation::NotThere(bin))?]
            }
            None => installed(),
        };
        choose(found, wanted)
    }

    /// The path of one of its programs.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    fn at(bin: &Path) -> Option<Installation> {
        if !bin.join("initdb").is_file() {
            return None;
        }
        let output = Command::new(bin.join("postgres")).arg("--version").output().ok()?;
        let major = major_version(&String::from_utf8_lossy(&output.stdout))?;
        Some(Installation { bin: bin.to_owned(), major })
    }
}

/// All that packages have put on this machine, or, where there is none, the one in `PATH`.
fn installed() -> Vec<Installation> {
    let mut found = Vec::new();
    for (parent, prefix) in PACKAGED {
        let entries = fs::read_dir(parent).into_iter().flatten().flatten();
        let versions = entries.filter(|e| e.file_name().to_string_lossy().starts_with(prefix));
        found.extend(versions.filter_map(|e| Installation::at(&e.path().join("bin"))));
    }
    if found.is_empty() {
        let path = std::env::var_os("PATH").unwrap_or_default();
        found.extend(std::env::split_paths(&path).find_map(|bin| Installation::at(&bin)));
    }
    found
}

fn choose(found: Vec<Installation>, wanted: Option<u32>) -> Result<Installation, NoInstallation> {
    let newest = found.iter().max_by_key(|i| i.major).cloned().ok_or(NoInstallation::Nowhere)?;
    match wanted {
        Some(wanted) => found
            .into_iter()
            .find(|i| i.major == wanted)
            .ok_or(NoInstallation::OtherVersion { wanted, found: newest.major }),
        None if newest.major < OLDEST_MAJOR => {
            Err(NoInstallation::TooOld { found: newest.major, bin: newest.bin })
        }
        None => Ok(newest),
    }
}

/// The 15 of `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`, or of `16beta1`.
fn major_version(version: &str) -> Option<u32> {
    let number = version.split(") ").nth(1)?;
    let digits = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    number[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(major: u32) -> Installation {
        Installation { bin: format!("/usr/lib/postgresql/{major}/bin").into(), major }
    }

    #[test]
    fn the_major_version_is_read_from_what_the_program_says() {
        assert_eq!(major_version("postgres (PostgreSQL) 15.18 (Debian 15.18-1)\n"), Some(15));
        assert_eq!(major_version("postgres (PostgreSQL) 19beta1\n"), Some(19));
        assert_eq!(major_version("bash: no such thing"), None);
    }

    #[test]
    fn the_newest_is_chosen_unless_the_data_asks_for_another() {
        let all = vec![at(15), at(17), at(16)];
        assert_eq!(choose(all.clone(), None).unwrap(), at(17));
        assert_eq!(choose(all.clone(), Some(15)).unwrap(), at(15));
        let missing = choose(all, Some(14)).unwrap_err().to_string();
        assert!(missing.contains("PostgreSQL 14 again"), "{missing}");
    }

    #[test]
    fn none_or_a_too_old_one_is_said_with_what_to_install() {
        assert!(choose(vec![], None).unwrap_err().to_string().contains("apt install postgresql"));
        assert!(choose(vec![at(13)], None).unwrap_err().to_string().contains("too old"));
    }
}
