//! The kinds of values: how each is read, what is allowed, and how it is shown again.

use std::time::Duration;

use bytesize::ByteSize;

use super::raw::{Given, quoted};

/// A value, and how it is written in TOML, in one spelling.
pub(super) struct Read<T> {
    pub(super) value: T,
    pub(super) shown: String,
}

/// What is wrong with a value.
#[derive(Debug)]
pub(super) struct Fault {
    /// Where within the value: empty, or the place in a list (`[1]`).
    pub(super) at: String,
    /// What was found. What is allowed is added by the reader.
    pub(super) message: String,
}

impl From<String> for Fault {
    fn from(message: String) -> Fault {
        Fault { at: String::new(), message }
    }
}

/// How a value is read.
pub(super) type Reading<'a, T> = Box<dyn Fn(&Given) -> Result<Read<T>, Vec<Fault>> + 'a>;

/// A kind of value.
pub(super) struct Kind<'a, T> {
    /// What is allowed, in words, for messages and the manual.
    pub(super) allowed: String,
    pub(super) read: Reading<'a, T>,
}

impl<'a, T: 'a> Kind<'a, T> {
    fn new(allowed: String, read: impl Fn(&Given) -> Result<Read<T>, String> + 'a) -> Kind<'a, T> {
        let read = move |given: &Given| read(given).map_err(|message| vec![Fault::from(message)]);
        Kind { allowed, read: Box::new(read) }
    }

    /// The same, shown in the dump as `show` writes it.
    pub(super) fn shown_as(self, show: impl Fn(&T) -> String + 'a) -> Kind<'a, T> {
        let Kind { allowed, read } = self;
        let read = move |given: &Given| {
            read(given).map(|Read { value, .. }| {
                let shown = toml_string(&show(&value));
                Read { value, shown }
            })
        };
        Kind { allowed, read: Box::new(read) }
    }
}

/// A string that `check` takes.
pub(super) fn text<'a, T: 'a>(
    allowed: &str,
    check: impl Fn(&str) -> Result<T, String> + 'a,
) -> Kind<'a, T> {
    Kind::new(allowed.to_owned(), move |given| {
        let text = given.text()?;
        Ok(Read { value: check(text)?, shown: toml_string(text) })
    })
}

/// A string that `check` takes and that is never shown; nor may the messages of `check` show it.
pub(super) fn secret<'a, T: 'a>(
    allowed: &str,
    check: impl Fn(&str) -> Result<T, String> + 'a,
) -> Kind<'a, T> {
    Kind::new(allowed.to_owned(), move |given| {
        let text = given.secret_text()?;
        Ok(Read { value: check(text)?, shown: toml_string("***") })
    })
}

/// A whole number within bounds.
pub(super) fn count<'a, T: TryFrom<usize> + 'a>(min: usize, max: usize) -> Kind<'a, T> {
    Kind::new(format!("{min} to {max}"), move |given| {
        let number = given.integer()?;
        let bounded = usize::try_from(number).ok().filter(|number| (min..=max).contains(number));
        let value = bounded.and_then(|number| T::try_from(number).ok());
        let value = value.ok_or_else(|| {
            let least = i128::try_from(min).unwrap_or(i128::MAX);
            format!("{number} is too {}", if number < least { "small" } else { "large" })
        })?;
        Ok(Read { value, shown: number.to_string() })
    })
}

/// `true` or `false`.
pub(super) fn flag<'a>() -> Kind<'a, bool> {
    Kind::new("true or false".to_owned(), |given| {
        let value = given.boolean()?;
        Ok(Read { value, shown: value.to_string() })
    })
}

/// One of some words.
pub(super) fn word<'a, T: Copy + 'a>(words: &'a [(&'a str, T)]) -> Kind<'a, T> {
    let names: Vec<String> = words.iter().map(|(name, _)| quoted(name)).collect();
    text(&names.join(", "), move |text| {
        let found = words.iter().find(|(name, _)| *name == text);
        found.map(|(_, value)| *value).ok_or_else(|| format!("{} is not known", quoted(text)))
    })
}

/// One of some numbers.
pub(super) fn number(numbers: &[u16]) -> Kind<'_, u16> {
    let names: Vec<String> = numbers.iter().map(u16::to_string).collect();
    Kind::new(names.join(" or "), move |given| {
        let found = given.integer()?;
        let value = numbers.iter().find(|number| i128::from(**number) == found);
        let value = *value.ok_or_else(|| format!("{found} is neither"))?;
        Ok(Read { value, shown: value.to_string() })
    })
}

/// A time with a unit, within bounds.
pub(super) fn duration<'a>(min: &'a str, max: &'a str) -> Kind<'a, Duration> {
    Kind::new(format!("{min} to {max}"), move |given| {
        let value = bounded_duration(given, min, max)?;
        Ok(Read { value, shown: toml_string(&duration_text(value)) })
    })
}

/// A time with a unit, within bounds, or a word that stands for none.
pub(super) fn duration_or<'a>(
    none: &'a str,
    min: &'a str,
    max: &'a str,
) -> Kind<'a, Option<Duration>> {
    Kind::new(format!("{min} to {max}, or {none:?}"), move |given| {
        if given.text().is_ok_and(|text| text == none) {
            return Ok(Read { value: None, shown: toml_string(none) });
        }
        let value = bounded_duration(given, min, max)?;
        Ok(Read { value: Some(value), shown: toml_string(&duration_text(value)) })
    })
}

fn bounded_duration(given: &Given, min: &str, max: &str) -> Result<Duration, String> {
    if given.is_number() {
        let shown = given.shown();
        let bare = shown.trim_matches('"');
        return Err(format!("{shown} has no unit; write \"{bare}s\" for seconds"));
    }
    let text = given.text()?;
    let value = humantime::parse_duration(text)
        .map_err(|error| format!("{} is no time ({error})", quoted(text)))?;
    match () {
        () if value < own_duration(min) => Err(format!("{} is too short", quoted(text))),
        () if value > own_duration(max) => Err(format!("{} is too long", quoted(text))),
        () => Ok(value),
    }
}

fn own_duration(text: &str) -> Duration {
    humantime::parse_duration(text).expect("the bounds in this program are well written")
}

/// A duration in one spelling, exact: `90s`, `500ms`, `36h`.
pub(super) fn duration_text(duration: Duration) -> String {
    const UNITS: [(u128, &str); 7] = [
        (86_400_000_000_000, "d"),
        (3_600_000_000_000, "h"),
        (60_000_000_000, "m"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
        (1_000, "us"),
        (1, "ns"),
    ];
    let nanoseconds = duration.as_nanos();
    let fits =
        |(size, _): &&(u128, &str)| nanoseconds >= *size && nanoseconds.is_multiple_of(*size);
    let unit = UNITS.iter().find(fits);
    unit.map_or("0s".to_owned(), |(size, unit)| format!("{}{unit}", nanoseconds / size))
}

/// A number of bytes within bounds: a whole number, or a string with a unit.
pub(super) fn size<'a>(min: &'a str, max: &'a str) -> Kind<'a, usize> {
    Kind::new(format!("{min} to {max}"), move |given| {
        let bytes = match given.integer() {
            Ok(number) => u64::try_from(number).map_err(|_| format!("{number} is too small"))?,
            Err(_) => {
                let text = given.text()?;
                let size = text.trim().parse::<ByteSize>().map_err(|_| {
                    format!("{} is no size; write it like \"64KiB\" or \"1MiB\"", quoted(text))
                })?;
                size.as_u64()
            }
        };
        match () {
            () if bytes < own_size(min) => Err(format!("{} is too small", given.shown())),
            () if bytes > own_size(max) => Err(format!("{} is too large", given.shown())),
            () => {
                let value = usize::try_from(bytes).map_err(|_| format!("{bytes} is too large"))?;
                Ok(Read { value, shown: size_text(bytes) })
            }
        }
    })
}

fn own_size(text: &str) -> u64 {
    text.parse::<ByteSize>().expect("the bounds in this program are well written").as_u64()
}

/// A size in one spelling, exact: `"8MiB"`, or the bare number of bytes.
fn size_text(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = UNITS.iter().find(|(size, _)| bytes > 0 && bytes.is_multiple_of(*size));
    match unit {
        Some((size, name)) => toml_string(&format!("{}{name}", bytes / size)),
        None => bytes.to_string(),
    }
}

/// A list of values of one kind.
pub(super) fn list<'a, T: 'a>(item: Kind<'a, T>, min: usize, max: usize) -> Kind<'a, Vec<T>> {
    let Kind { allowed, read: read_item } = item;
    let read = move |given: &Given| {
        let items = given.items().map_err(|message| vec![Fault::from(message)])?;
        if items.len() < min || items.len() > max {
            return Err(vec![Fault::from(format!("the list has {} items", items.len()))]);
        }
        let mut faults = Vec::new();
        let (mut value, mut shown) = (Vec::new(), Vec::new());
        for (position, item) in items.iter().enumerate() {
            match read_item(item) {
                Ok(read) => {
                    value.push(read.value);
                    shown.push(read.shown);
                }
                Err(wrong) => faults.extend(wrong.into_iter().map(|fault| Fault {
                    at: format!("[{position}]{}", fault.at),
                    message: fault.message,
                })),
            }
        }
        let shown = format!("[{}]", shown.join(", "));
        if faults.is_empty() { Ok(Read { value, shown }) } else { Err(faults) }
    };
    Kind { allowed: format!("a list of {min} to {max}, each {allowed}"), read: Box::new(read) }
}

/// Text as TOML writes it.
pub(super) fn toml_string(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use super::super::raw::owned;
    use super::*;

    fn read<T>(kind: &Kind<'_, T>, text: &str) -> Result<(T, String), String> {
        let given = Given::of_file(owned(toml::de::DeValue::parse(text).unwrap(), &[]));
        match (kind.read)(&given) {
            Ok(read) => Ok((read.value, read.shown)),
            Err(faults) => Err(faults
                .iter()
                .map(|fault| format!("{}{}", fault.at, fault.message))
                .collect::<Vec<_>>()
                .join("; ")),
        }
    }

    #[test]
    fn a_time_needs_a_unit_and_stays_within_its_bounds() {
        let kind = duration("100ms", "1h");
        let shown = |text: &str| read(&kind, text).unwrap().1;
        assert_eq!(read(&kind, "'1m 30s'").unwrap().0, Duration::from_secs(90));
        assert_eq!(shown("'1m 30s'"), "\"90s\"");
        assert_eq!(shown("'100ms'"), "\"100ms\"");
        assert_eq!(shown("'1h'"), "\"1h\"");
        let wrong = |text: &str| read(&kind, text).unwrap_err();
        assert_eq!(wrong("5"), "5 has no unit; write \"5s\" for seconds");
        assert_eq!(wrong("'5'"), "\"5\" has no unit; write \"5s\" for seconds");
        assert_eq!(wrong("'0s'"), "\"0s\" is too short");
        assert_eq!(wrong("'99ms'"), "\"99ms\" is too short");
        assert_eq!(wrong("'3601s'"), "\"3601s\" is too long");
        assert!(wrong("'-1d'").starts_with("\"-1d\" is no time"), "{}", wrong("'-1d'"));
        assert!(wrong("'5 parsecs'").starts_with("\"5 parsecs\" is no time"));
        assert!(wrong("''").starts_with("\"\" is no time"));
        assert_eq!(wrong("true"), "true is not a string; put it in quotes");
    }

    #[test]
    fn a_size_is_bytes_or_has_a_unit() {
        let kind = size("1KiB", "64MiB");
        assert_eq!(read(&kind, "'1MiB'").unwrap(), (1 << 20, "\"1MiB\"".to_owned()));
        assert_eq!(read(&kind, "'1 MB'").unwrap(), (1_000_000, "1000000".to_owned()));
        assert_eq!(read(&kind, "2_048").unwrap(), (2048, "\"2KiB\"".to_owned()));
        let wrong = |text: &str| read(&kind, text).unwrap_err();
        assert_eq!(wrong("1023"), "1023 is too small");
        assert_eq!(wrong("-1"), "-1 is too small");
        assert_eq!(wrong("'65MiB'"), "\"65MiB\" is too large");
        assert!(wrong("'1 MoB'").starts_with("\"1 MoB\" is no size"));
        assert!(wrong("'infMiB'").starts_with("\"infMiB\" is no size"));
        assert!(wrong("1.5").starts_with("1.5 is not a string"), "{}", wrong("1.5"));
    }

    #[test]
    fn a_count_is_a_whole_number_within_its_bounds() {
        let kind = count::<usize>(1, 256);
        assert_eq!(read(&kind, "256").unwrap(), (256, "256".to_owned()));
        assert_eq!(read(&kind, "0x10").unwrap(), (16, "16".to_owned()));
        let wrong = |text: &str| read(&kind, text).unwrap_err();
        assert_eq!(wrong("0"), "0 is too small");
        assert_eq!(wrong("-1"), "-1 is too small");
        assert_eq!(wrong("257"), "257 is too large");
        assert_eq!(wrong("'4'"), "\"4\" is not a whole number");
        assert_eq!(wrong("1.5"), "1.5 is not a whole number");
        assert_eq!(wrong("[1]"), "this, a list, is not a whole number");
    }

    #[test]
    fn a_list_in_a_variable_is_written_with_commas_or_as_toml() {
        let kind = list(text("words", |text| Ok(text.to_owned())), 0, 3);
        let items = |text: &str| (kind.read)(&Given::of_text(text)).unwrap().value;
        assert_eq!(items(""), [""; 0]);
        assert_eq!(items("a"), ["a"]);
        assert_eq!(items("a, b,c"), ["a", "b", "c"]);
        assert_eq!(items("['a', \"b,c\"]"), ["a", "b,c"]);
        assert!((kind.read)(&Given::of_text("['a'")).is_err());
        assert!((kind.read)(&Given::of_text("a,b,c,d")).is_err());
    }

    #[test]
    fn every_fault_of_a_list_is_told() {
        let kind = list(count::<u16>(1, 9), 0, 9);
        assert_eq!(
            read(&kind, "[0, 5, 10]").map(|(_, shown)| shown).unwrap_err(),
            "[0]0 is too small; [2]10 is too large"
        );
    }

    #[test]
    fn a_duration_has_one_spelling() {
        for text in ["0s", "1ns", "1ms", "1s", "90s", "1h", "30d", "36h", "36500d"] {
            let duration = if text == "0s" { Duration::ZERO } else { own_duration(text) };
            assert_eq!(duration_text(duration), text);
        }
    }
}
