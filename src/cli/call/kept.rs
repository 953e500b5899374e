//! What is kept of a call until its outcome is known: one small file for each intent.
//!
//! The file is there, on the disk, before the first byte is sent, and goes when the outcome is known. So whoever runs
//! the job next, after whatever crash, asks with the same key and the same body.

use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// How much of the operation's name is in the file's, in characters.
const NAME_MAX: usize = 40;

/// An open call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Open {
    pub(super) url: String,
    pub(super) operation: String,
    /// The whole text of what identifies the intent.
    pub(super) intent: String,
    pub(super) key: String,
    /// As it was sent.
    pub(super) body: String,
}

/// The place of an open call's file.
#[derive(Clone, Debug)]
pub(super) struct Place {
    directory: PathBuf,
    pub(super) file: PathBuf,
}

impl Place {
    /// The file for an intent of an operation behind a URL.
    pub(super) fn new(directory: PathBuf, url: &str, operation: &str, intent: &str) -> Place {
        let digest = Sha256::digest(format!("{url}\0{operation}\0{intent}"));
        let digest: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let name: String = operation.chars().filter(is_plain).take(NAME_MAX).collect();
        let file = directory.join(format!("{name}-{digest}.json"));
        Place { directory, file }
    }

    /// The call that is open here.
    pub(super) fn find(&self) -> anyhow::Result<Option<Open>> {
        let text = match fs::read(&self.file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.with_context(|| {
                format!("nothing was sent, since {} cannot be read", self.file.display())
            })?,
        };
        let open = serde_json::from_slice(&text);
        open.map(Some).with_context(|| {
            let file = self.file.display();
            format!("nothing was sent, since {file} is not of this program: move it away")
        })
    }

    /// Keeps the call: when this returns it is on the disk, whole, for nobody else to read.
    pub(super) fn keep(&self, open: &Open) -> anyhow::Result<()> {
        self.write(open)
            .with_context(|| format!("the key cannot be kept in {}", self.directory.display()))
    }

    fn write(&self, open: &Open) -> anyhow::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        // Made with mode 0600.
        let mut file = tempfile::NamedTempFile::new_in(&self.directory)?;
        file.write_all(&serde_json::to_vec(open)?)?;
        file.as_file().sync_all()?;
        file.persist(&self.file)?;
        sync_directory(&self.directory)?;
        Ok(())
    }

    /// Forgets the call: its outcome is known.
    pub(super) fn clear(&self) -> anyhow::Result<()> {
        match fs::remove_file(&self.file) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.with_context(|| {
                format!("the outcome is known, but {} cannot be removed", self.file.display())
            }),
        }
    }
}

fn sync_directory(directory: &Path) -> std::io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn open() -> Open {
        Open {
            url: "http://127.0.0.1:8080".to_owned(),
            operation: "orders".to_owned(),
            intent: "job=a".to_owned(),
            key: "job=a".to_owned(),
            body: "{}".to_owned(),
        }
    }

    #[test]
    fn what_is_kept_is_found_again_and_is_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("onced/calls");
        let place = Place::new(directory.clone(), "u", "orders", "job=a");
        assert_eq!(place.find().unwrap(), None);
        place.keep(&open()).unwrap();
        assert_eq!(place.find().unwrap(), Some(open()));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&place.file), mode(&directory)), (0o600, 0o700));
        place.clear().unwrap();
        assert_eq!(place.find().unwrap(), None);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    }

    #[test]
    fn each_url_operation_and_intent_has_a_file_of_its_own() {
        let file =
            |url, operation, intent| Place::new(PathBuf::from("/s"), url, operation, intent).file;
        let files =
            [file("u", "a", "i"), file("v", "a", "i"), file("u", "b", "i"), file("u", "a", "j")];
        let distinct: std::collections::BTreeSet<_> = files.iter().collect();
        assert_eq!(distinct.len(), files.len());
        assert!(file("u", "/v1/a b", "i").to_str().unwrap().starts_with("/s/v1ab-"));
    }

    #[test]
    fn a_file_that_is_not_ours_is_told_and_left() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new(folder.path().to_owned(), "u", "orders", "i");
        fs::write(&place.file, "{").unwrap();
        assert!(place.find().unwrap_err().to_string().contains("move it away"));
    }
}
