//! The operators' token.

use std::sync::{PoisonError, RwLock};

use crate::config::Secret;
use crate::http::auth::{bearer_token, is_same_token};

/// The token in force, where one is set. SIGHUP puts another in its place.
pub struct Token(RwLock<Option<Secret<String>>>);

impl Token {
    /// The token of the configuration.
    pub fn new(token: Option<Secret<String>>) -> Token {
        Token(RwLock::new(token))
    }

    /// Puts another in its place. False where that would take the token away: what is closed does not open.
    pub fn replace(&self, token: Option<Secret<String>>) -> bool {
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if token.is_none() && current.is_some() {
            return false;
        }
        *current = token;
        true
    }

    /// Whether one is set.
    pub fn is_set(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Whether a request with these `Authorization` headers may use the API.
    pub fn admits<'a>(&self, mut authorization: impl Iterator<Item = &'a str>) -> bool {
        let current = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let Some(token) = &*current else { return true };
        let header = authorization.next();
        if authorization.next().is_some() {
            return false;
        }
        header.and_then(bearer_token).is_some_and(|sent| is_same_token(sent, token.reveal()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> Option<Secret<String>> {
        Some(Secret::new(text.to_owned()))
    }

    #[test]
    fn only_the_token_admits_and_it_stands_once() {
        let set = Token::new(token("good"));
        assert!(set.admits(["Bearer good"].into_iter()));
        assert!(!set.admits(["Bearer goo"].into_iter()));
        assert!(!set.admits(["Basic good"].into_iter()));
        assert!(!set.admits(["Bearer good", "Bearer good"].into_iter()));
        assert!(!set.admits(std::iter::empty()));
        assert!(Token::new(None).admits(std::iter::empty()));
    }

    #[test]
    fn it_can_be_exchanged_or_set_and_not_taken_away() {
        let set = Token::new(None);
        assert!(set.replace(None) && set.replace(token("one")) && set.replace(token("two")));
        assert!(!set.replace(None));
        assert!(set.is_set() && set.admits(["Bearer two"].into_iter()));
        assert!(!set.admits(["Bearer one"].into_iter()));
    }
}
