//! What a client of PostgreSQL says, read from the bytes: round trips, and the statements that each of them executes.

use std::collections::HashMap;

/// Bytes that a client sends before it waits for an answer.
#[derive(Clone, Debug)]
pub struct Trip {
    /// The number of the connection.
    pub connection: usize,
    /// The texts of the statements that it executes.
    pub statements: Vec<String>,
}

/// The client's side of one connection, without encryption.
pub struct Frontend {
    connection: usize,
    /// The first message has no tag.
    is_started: bool,
    buffer: Vec<u8>,
    /// Texts of prepared statements by their names.
    prepared: HashMap<String, String>,
    /// The statement that was bound last.
    bound: String,
    statements: Vec<String>,
}

/// What comes before the body of a message: its tag and the length of what follows the tag.
const LENGTH: usize = 4;

impl Frontend {
    pub fn new(connection: usize) -> Frontend {
        Frontend {
            connection,
            is_started: false,
            buffer: Vec::new(),
            prepared: HashMap::new(),
            bound: String::new(),
            statements: Vec::new(),
        }
    }

    /// Takes the next bytes, and gives the trips that they complete.
    pub fn hear(&mut self, bytes: &[u8]) -> Vec<Trip> {
        self.buffer.extend_from_slice(bytes);
        let mut trips = Vec::new();
        while let Some((tag, body)) = self.next_message() {
            let text = |number: usize| {
                let part = body.split(|byte| *byte == 0).nth(number).unwrap_or_default();
                String::from_utf8_lossy(part).into_owned()
            };
            match tag {
                b'P' => drop(self.prepared.insert(text(0), text(1))),
                b'B' => self.bound = self.prepared.get(&text(1)).cloned().unwrap_or_default(),
                b'E' => self.statements.push(self.bound.clone()),
                b'Q' => self.statements.push(text(0)),
                _ => {}
            }
            // A simple query, and the end of a series of messages, are answered by ReadyForQuery.
            if matches!(tag, b'Q' | b'S') {
                let statements = std::mem::take(&mut self.statements);
                trips.push(Trip { connection: self.connection, statements });
            }
        }
        trips
    }

    /// The tag and body of the next message, where it is whole.
    fn next_message(&mut self) -> Option<(u8, Vec<u8>)> {
        let start = usize::from(self.is_started);
        let length = self.buffer.get(start..start + LENGTH)?;
        let length = u32::from_be_bytes(length.try_into().expect("four bytes"));
        let end = start + usize::try_from(length).expect("a message fits into memory");
        let body = self.buffer.get(start + LENGTH..end)?.to_vec();
        let tag = if self.is_started { self.buffer[0] } else { 0 };
        self.is_started = true;
        self.buffer.drain(..end);
        Some((tag, body))
    }
}
