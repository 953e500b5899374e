//! The body of a request (RFC 9112, 6 and 7): by declared length, or in chunks.

use std::time::Instant;

use super::Malformed;
use super::head::{Length, is_field_byte};
use super::incoming::{Cut, Incoming};

/// The digits of a chunk's size: as many as the longest one that a `u64` holds.
const SIZE_DIGITS: usize = 16;

/// The longest extension of a chunk, which is ignored.
const EXTENSION_MAX: usize = 64;

/// The longest trailer section, which is ignored: none of it ever counts as a header.
const TRAILERS_MAX: usize = 4 * 1024;

/// Reads the body whole by `deadline`. One of more than `max` bytes is refused as soon as that is known.
pub(super) fn read(
    incoming: &mut Incoming,
    length: Length,
    max: usize,
    deadline: Instant,
) -> Result<Vec<u8>, Cut> {
    let mut body = Vec::new();
    match length {
        Length::Exact(0) => {}
        Length::Exact(declared) => {
            let count = within(declared, max)?;
            incoming.append(&mut body, count, deadline)?;
        }
        Length::Chunked => read_chunks(incoming, &mut body, max, deadline)?,
    }
    Ok(body)
}

/// `count`, where it is at most `max`.
pub(super) fn within(count: u64, max: usize) -> Result<usize, Malformed> {
    usize::try_from(count).ok().filter(|count| *count <= max).ok_or(Malformed::BodyTooLarge)
}

fn read_chunks(
    incoming: &mut Incoming,
    body: &mut Vec<u8>,
    max: usize,
    deadline: Instant,
) -> Result<(), Cut> {
    loop {
        let size = read_line(incoming, SIZE_DIGITS + EXTENSION_MAX, deadline, chunk_size)??;
        if size == 0 {
            return skip_trailers(incoming, deadline);
        }
        let count = within(size, max - body.len())?;
        incoming.append(body, count, deadline)?;
        let empty = read_line(incoming, 0, deadline, |_| ());
        empty.map_err(|cut| match cut {
            Cut::Malformed(Malformed::Request(_)) => {
                Malformed::Request("a chunk is longer than its size").into()
            }
            Cut::Malformed(_) | Cut::Broken | Cut::Ended => cut,
        })?;
    }
}

fn skip_trailers(incoming: &mut Incoming, deadline: Instant) -> Result<(), Cut> {
    let mut left = TRAILERS_MAX;
    loop {
        let length = read_line(incoming, left, deadline, <[u8]>::len)?;
        if length == 0 {
            return Ok(());
        }
        left -= length;
    }
}

/// `1*HEXDIG`, then nothing or `;` and an extension.
fn chunk_size(line: &[u8]) -> Result<u64, Malformed> {
    let digits = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
    let (size, extension) = line.split_at(digits);
    let extension_is_fine =
        extension.is_empty() || (extension[0] == b';' && extension.len() <= EXTENSION_MAX);
    if !extension_is_fine {
        return Err(Malformed::Request("a chunk's size is followed by something else"));
    }
    std::str::from_utf8(size)
        .ok()
        .filter(|size| size.len() <= SIZE_DIGITS)
        .and_then(|size| u64::from_str_radix(size, 16).ok())
        .ok_or(Malformed::Request("a chunk's size is not a hexadecimal number of 1 to 16 digits"))
}

/// Reads a line of at most `max` bytes, ended by CR and LF, and gives it to `take` without them.
fn read_line<T>(
    incoming: &mut Incoming,
    max: usize,
    deadline: Instant,
    take: impl FnOnce(&[u8]) -> T,
) -> Result<T, Cut> {
    loop {
        let buffered = incoming.buffered();
        let length = buffered.iter().position(|byte| !is_field_byte(*byte));
        if length.unwrap_or(buffered.len()) > max {
            return Err(Malformed::Request("a line of the chunked body is too long").into());
        }
        if let Some(length) = length {
            match &buffered[length..] {
                [b'\r', b'\n', ..] => {
                    let taken = take(&buffered[..length]);
                    incoming.consume(length + 2);
                    return Ok(taken);
                }
                [b'\r'] => {}
                _ => {
                    let what = "a line of the chunked body does not end in CR and LF";
                    return Err(Malformed::Request(what).into());
                }
            }
        }
        incoming.more(deadline)?;
    }
}
