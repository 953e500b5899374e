//! The files that a configuration names: secrets, certificates, SQL.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nix::unistd::{Uid, User};

use super::secret::Secret;

/// The longest file that is read for a secret.
const LONGEST_SECRET: u64 = 16 << 10;
/// The longest file that is read for SQL or certificates.
pub(super) const LONGEST_TEXT: u64 = 1 << 20;

/// The text of a file that ought to be UTF-8 and at most `longest` bytes. The message says what is wrong with it, and
/// never what is in it.
pub(super) fn text_or_empty(path: &Path, longest: u64) -> Result<String, String> {
    let refused = |error: std::io::Error| format!("cannot be read: {error}; {}", who());
    let metadata = std::fs::metadata(path).map_err(refused)?;
    // Opening a pipe would wait for its writer, for ever if need be.
    if !metadata.is_file() {
        return Err("is not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(refused)?;
    file.take(longest + 1).read_to_end(&mut bytes).map_err(refused)?;
    if bytes.len() as u64 > longest {
        return Err(format!("is longer than {longest} bytes"));
    }
    String::from_utf8(bytes)
        .map_err(|error| format!("is not UTF-8 from byte {} on", error.utf8_error().valid_up_to()))
}

/// The same of a file that must not be empty; the message names it.
fn text(path: &Path, longest: u64) -> Result<String, String> {
    let text = match text_or_empty(path, longest) {
        Ok(text) if text.trim().is_empty() => Err("is empty".to_owned()),
        other => other,
    };
    text.map_err(|message| format!("{} {message}", path.display()))
}

/// As which user this runs: the first thing to know where a file cannot be read.
fn who() -> String {
    let uid = Uid::effective();
    match User::from_uid(uid) {
        Ok(Some(user)) => format!("this runs as user {} ({uid})", user.name),
        Ok(None) | Err(_) => format!("this runs as user {uid}"),
    }
}

/// A file that holds one secret, without the newline that editors leave at its end.
pub(super) fn one_line(path: &Path) -> Result<String, String> {
    let text = text(path, LONGEST_SECRET)?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.contains(['\n', '\r']) {
        return Err(format!("{} has more than one line; it holds one secret", path.display()));
    }
    Ok(line.to_owned())
}

/// A bearer token.
pub(super) fn token(path: &Path) -> Result<Secret<String>, String> {
    const SHORTEST: usize = 16;
    let line = one_line(path)?;
    if line.len() < SHORTEST || !line.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "{} does not hold a token of at least {SHORTEST} visible ASCII characters without \
             spaces; `onced token new` makes one",
            path.display()
        ));
    }
    Ok(Secret::new(line))
}

/// A key that signs webhooks, decoded.
pub(super) fn signing_secret(path: &Path) -> Result<Secret<Vec<u8>>, String> {
    let line = one_line(path)?;
    decode_signing_secret(&line)
        .map(Secret::new)
        .map_err(|message| format!("{} {message}", path.display()))
}

/// A secret of Standard Webhooks: 24 to 64 bytes in base64, after `whsec_` or bare.
fn decode_signing_secret(line: &str) -> Result<Vec<u8>, String> {
    if line.starts_with("v1,") {
        return Err("starts with \"v1,\", which belongs to signatures; remove it".to_owned());
    }
    if line.starts_with("whsk_") || line.starts_with("whpk_") {
        return Err("holds an asymmetric key; a symmetric one starts with whsec_".to_owned());
    }
    let base64 = line.strip_prefix("whsec_").unwrap_or(line);
    let bytes = STANDARD.decode(base64).map_err(|_| {
        "is not base64 (with + and /, and padded with =), bare or after whsec_".to_owned()
    })?;
    match bytes.len() {
        24..=64 => Ok(bytes),
        length => Err(format!("decodes to {length} bytes; a secret has 24 to 64")),
    }
}

/// Whether a file holds PEM certificates.
pub(super) fn certificates(path: &Path) -> Result<(), String> {
    let text = text(path, LONGEST_TEXT)?;
    if text.contains("-----BEGIN CERTIFICATE-----") {
        Ok(())
    } else {
        Err(format!("{} holds no certificate in PEM form", path.display()))
    }
}

/// An operation's SQL.
pub(super) fn sql(path: &Path) -> Result<String, String> {
    let text = text(path, LONGEST_TEXT)?;
    if text.starts_with('\u{feff}') {
        return Err(format!("{} starts with a byte order mark; save it without", path.display()));
    }
    if text.contains('\0') {
        return Err(format!("{} holds a zero byte", path.display()));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signing_secret_is_the_decoded_base64() {
        let bare = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let decoded = decode_signing_secret(bare).unwrap();
        assert_eq!(decoded.len(), 24);
        assert_eq!(decoded[..3], [0x31, 0xf2, 0x90]);
        assert_eq!(decode_signing_secret(&format!("whsec_{bare}")).unwrap(), decoded);
        let table = [
            (format!("v1,whsec_{bare}"), "v1,"),
            (format!("whsk_{bare}"), "asymmetric"),
            ("whsec_".to_owned(), "decodes to 0 bytes"),
            (bare[..28].to_owned(), "decodes to 21 bytes"),
            (STANDARD.encode([7; 65]), "decodes to 65 bytes"),
            (format!("{bare} "), "is not base64"),
            (format!("{bare}="), "is not base64"),
            ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLa-_".to_owned(), "is not base64"),
            ("hunter2".to_owned(), "is not base64"),
        ];
        for (line, expected) in table {
            let message = decode_signing_secret(&line).unwrap_err();
            assert!(message.contains(expected), "{line}: {message}");
            assert!(!message.contains("hunter2") && !message.contains(bare), "{message}");
        }
        assert_eq!(decode_signing_secret(&STANDARD.encode([7; 64])).unwrap(), [7; 64]);
    }

    #[test]
    fn a_secret_file_loses_one_newline_and_holds_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let read = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            one_line(&path)
        };
        assert_eq!(read(b"abc").unwrap(), "abc");
        assert_eq!(read(b"abc\n").unwrap(), "abc");
        assert_eq!(read(b"abc\r\n").unwrap(), "abc");
        assert_eq!(read(b"abc ").unwrap(), "abc ");
        assert!(read(b"abc\ndef\n").unwrap_err().contains("more than one line"));
        assert!(read(b"\n").unwrap_err().ends_with("is empty"));
        assert!(read(b"abc\xff").unwrap_err().contains("not UTF-8 from byte 3 on"));
        assert!(read(&[b'a'; 16385]).unwrap_err().contains("longer than 16384 bytes"));
    }

    #[test]
    fn a_file_that_is_no_file_is_refused_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(one_line(&pipe).unwrap_err().ends_with("is not a regular file"));
        assert!(one_line(folder.path()).unwrap_err().ends_with("is not a regular file"));
        let missing = one_line(&folder.path().join("missing")).unwrap_err();
        assert!(missing.contains("No such file"), "{missing}");
        assert!(missing.contains("this runs as user "), "{missing}");
    }
}
