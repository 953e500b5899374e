//! What is wrong with a configuration: all of it at once, each with its place.

use std::fmt::{self, Write as _};
use std::path::PathBuf;

/// Where something stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The file as a whole: something is missing from it, or it cannot be read.
    File(PathBuf),
    /// A position in the file; both numbers count from 1.
    Line {
        /// The file.
        file: PathBuf,
        /// The line.
        line: usize,
        /// The character within the line.
        column: usize,
    },
    /// An environment variable.
    Variable(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File(file) => write!(f, "{}", file.display()),
            Place::Line { file, line, column } => {
                write!(f, "{}:{line}:{column}", file.display())
            }
            Place::Variable(name) => f.write_str(name),
        }
    }
}

/// One thing that is wrong. It prints as one line and never shows the value of a secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Where it stands.
    pub place: Place,
    /// The key, such as `writers.threads`; empty where none is concerned.
    pub key: String,
    /// What was found, what is allowed, and a near miss where there is one.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key.escape_debug())?;
        }
        // A message may quote what was given, such as the name of a file.
        self.message.chars().try_for_each(|character| {
            if character.is_control() {
                write!(f, "{}", character.escape_debug())
            } else {
                f.write_char(character)
            }
        })
    }
}

/// Everything that is wrong with a configuration, in the order of the file, then of the variables. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, problem) in self.0.iter().enumerate() {
            if position > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
