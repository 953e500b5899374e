//! As much of SQL's lexical rules as it takes to see where a statement ends.

/// The statement without the semicolon, the blanks and the comments at its end, so that other SQL can follow it. It
/// begins where the file begins: places in it are places in the file.
pub fn statement_body(sql: &str) -> &str {
    let end = Tokens::of(sql).filter(|token| token.kind != Kind::End).last();
    end.map_or("", |token| &sql[..token.end])
}

/// What a piece of SQL is, as far as it matters here. Blanks and comments are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Word,
    /// `$1`, by its number.
    Parameter(usize),
    /// A string or a quoted name.
    Quoted,
    /// An opening parenthesis.
    Open,
    /// A semicolon.
    End,
    /// A number, or a character of anything else.
    Other,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    pub(super) kind: Kind,
    /// Byte offsets.
    pub(super) start: usize,
    pub(super) end: usize,
}

/// Splits SQL into tokens by PostgreSQL's lexical rules with `standard_conforming_strings` on. What has no end goes to
/// the end of the text: PostgreSQL reports it.
pub(super) struct Tokens<'a> {
    sql: &'a str,
    at: usize,
}

impl Tokens<'_> {
    pub(super) fn of(sql: &str) -> Tokens<'_> {
        Tokens { sql, at: 0 }
    }

    fn rest(&self) -> &str {
        &self.sql[self.at..]
    }

    fn skip_blanks_and_comments(&mut self) {
        loop {
            let rest = self.rest();
            let blank = rest.len() - rest.trim_start().len();
            let skipped = if blank > 0 {
                blank
            } else if rest.starts_with("--") {
                rest.find('\n').unwrap_or(rest.len())
            } else if rest.starts_with("/*") {
                comment_length(rest)
            } else {
                return;
            };
            self.at += skipped;
        }
    }
}

impl Iterator for Tokens<'_> {
    type Item = Token;

    fn next(&mut self) -> Option<Token> {
        self.skip_blanks_and_comments();
        let rest = self.rest();
        let first = rest.chars().next()?;
        let (kind, length) = match first {
            '\'' => (Kind::Quoted, quoted_length(rest, '\'', false)),
            '"' => (Kind::Quoted, quoted_length(rest, '"', false)),
            'e' | 'E' if rest[1..].starts_with('\'') => {
                (Kind::Quoted, 1 + quoted_length(&rest[1..], '\'', true))
            }
            '$' => dollar_token(rest),
            ';' => (Kind::End, 1),
            '(' => (Kind::Open, 1),
            c if is_word_start(c) => (Kind::Word, word_length(rest)),
            // A number keeps its letters: `1e5` is not a number and a word.
            c if c.is_ascii_digit() => (Kind::Other, word_length(rest)),
            c => (Kind::Other, c.len_utf8()),
        };
        let start = self.at;
        self.at += length;
        Some(Token { kind, start, end: self.at })
    }
}

fn is_word_start(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_' || !c.is_ascii()
}

fn word_length(text: &str) -> usize {
    let ends = |c: char| !(is_word_start(c) || c.is_ascii_digit() || c == '$');
    text.find(ends).unwrap_or(text.len())
}

/// Comments nest.
fn comment_length(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// A doubled quote is two strings side by side here, which comes to the same.
fn quoted_length(text: &str, quote: char, backslash: bool) -> usize {
    let mut escaped = false;
    let end = text.char_indices().skip(1).find(|(_, c)| {
        let was_escaped = escaped;
        escaped = backslash && *c == '\\' && !was_escaped;
        *c == quote && !was_escaped
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

/// A parameter, or a string between dollar signs.
fn dollar_token(text: &str) -> (Kind, usize) {
    let digits = text[1..].find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len() - 1);
    if digits > 0 {
        return (Kind::Parameter(text[1..=digits].parse().unwrap_or(usize::MAX)), 1 + digits);
    }
    let tag_ends = |c: char| !(is_word_start(c) || c.is_ascii_digit());
    let tag = text[1..].find(tag_ends).filter(|at| text[1 + at..].starts_with('$'));
    let Some(tag) = tag.map(|at| &text[..at + 2]) else { return (Kind::Other, 1) };
    let end = text[tag.len()..].find(tag).map(|at| 2 * tag.len() + at);
    (Kind::Quoted, end.unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_ends_with_the_last_token_of_the_statement() {
        let table = [
            ("SELECT 1", "SELECT 1"),
            ("SELECT 1;", "SELECT 1"),
            ("SELECT 1 ; ;\n", "SELECT 1"),
            ("-- what it does\nSELECT 1 -- done;", "-- what it does\nSELECT 1"),
            ("SELECT 1; -- done", "SELECT 1"),
            ("SELECT 1 /* ; */", "SELECT 1"),
            ("SELECT 1 /* a /* ; */ b */;", "SELECT 1"),
            ("SELECT ';--' ;", "SELECT ';--'"),
            ("SELECT 'it''s;'", "SELECT 'it''s;'"),
            ("SELECT 'c:\\';", "SELECT 'c:\\'"),
            ("SELECT E'a\\';b' ;", "SELECT E'a\\';b'"),
            ("SELECT \";\";", "SELECT \";\""),
            ("SELECT $$ ; -- $$ ;", "SELECT $$ ; -- $$"),
            ("SELECT $é$ ; $$ $é$;", "SELECT $é$ ; $$ $é$"),
            ("SELECT 1 -", "SELECT 1 -"),
            ("SELECT a$b$c ; -- ", "SELECT a$b$c"),
            ("SELECT '", "SELECT '"),
            (" ; -- nothing", ""),
            ("", ""),
        ];
        for (sql, body) in table {
            assert_eq!(statement_body(sql), body, "{sql}");
        }
    }
}
