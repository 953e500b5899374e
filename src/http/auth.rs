//! Who calls: bearer tokens, compared by their hashes in constant time.

use std::sync::{Arc, PoisonError, RwLock};

use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::call::Scope;
use crate::config::Principal;

/// The principals in force. SIGHUP puts others in their place, which is why they stand behind a lock: it is held only
/// to take or to change the one pointer.
pub struct Principals(RwLock<Arc<[Principal]>>);

/// Somebody who proved who they are, or nobody where nobody has to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Whose keys the caller's are.
    pub scope: Scope,
    /// The operations that may be called; `None` for all.
    operations: Option<Vec<String>>,
}

impl Principals {
    /// The principals of the configuration.
    pub fn new(principals: Vec<Principal>) -> Principals {
        Principals(RwLock::new(principals.into()))
    }

    /// Puts others in their place.
    pub fn replace(&self, principals: Vec<Principal>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = principals.into();
    }

    /// Whether callers have to authenticate.
    pub fn are_configured(&self) -> bool {
        !self.current().is_empty()
    }

    /// Who sent a request with these `Authorization` headers; `None` where that is not proved.
    pub fn authenticate<'a>(
        &self,
        mut authorization: impl Iterator<Item = &'a str>,
    ) -> Option<Caller> {
        let principals = self.current();
        if principals.is_empty() {
            return Some(Caller { scope: Scope::default(), operations: None });
        }
        let header = authorization.next();
        if authorization.next().is_some() {
            return None;
        }
        let principal = find(&principals, bearer_token(header?)?)?;
        Some(Caller {
            scope: Scope::new(principal.name.clone()),
            operations: principal.operations.clone(),
        })
    }

    fn current(&self) -> Arc<[Principal]> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Caller {
    /// Whether the caller may call this operation.
    pub fn may_call(&self, operation: &str) -> bool {
        self.operations.as_ref().is_none_or(|allowed| allowed.iter().any(|name| name == operation))
    }
}

/// The token of a `Bearer` header (RFC 6750); the scheme's letters may be of either case.
pub fn bearer_token(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    let token = token.trim_matches(' ');
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Whether two tokens are equal, in a time that depends on neither.
pub fn is_same_token(one: &str, other: &str) -> bool {
    Sha256::digest(one).as_slice().ct_eq(Sha256::digest(other).as_slice()).into()
}

/// Looks at every hash of every principal, so that the time tells nothing of which one it was.
fn find<'a>(principals: &'a [Principal], token: &str) -> Option<&'a Principal> {
    let hash = Sha256::digest(token);
    let mut found = None;
    for principal in principals {
        let is_one = principal
            .token_sha256
            .iter()
            .map(|stored| stored.as_slice().ct_eq(hash.as_slice()))
            .fold(Choice::from(0), |any, one| any | one);
        if bool::from(is_one) {
            found = Some(principal);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principals() -> Principals {
        let principal = |name: &str, tokens: &[&str], operations: Option<&[&str]>| Principal {
            name: name.to_owned(),
            token_sha256: tokens.iter().map(|token| Sha256::digest(token).into()).collect(),
            operations: operations.map(|names| names.iter().map(|&name| name.to_owned()).collect()),
        };
        Principals::new(vec![
            principal("billing", &["old-token", "new-token"], Some(&["orders"])),
            principal("shop", &["shop-token"], None),
        ])
    }

    fn scope_of(headers: &[&str]) -> Option<String> {
        principals()
            .authenticate(headers.iter().copied())
            .map(|caller| caller.scope.as_str().to_owned())
    }

    #[test]
    fn every_token_of_a_principal_gives_its_scope() {
        assert_eq!(scope_of(&["Bearer old-token"]).as_deref(), Some("billing"));
        assert_eq!(scope_of(&["bearer new-token"]).as_deref(), Some("billing"));
        assert_eq!(scope_of(&["Bearer shop-token"]).as_deref(), Some("shop"));
    }

    #[test]
    fn anything_else_is_nobody() {
        for headers in [
            &[][..],
            &[""],
            &["Bearer"],
            &["Bearer "],
            &["Bearer wrong"],
            &["Basic old-token"],
            &["old-token"],
            &["Bearer old-token", "Bearer old-token"],
        ] {
            assert_eq!(scope_of(headers), None, "{headers:?}");
        }
    }

    #[test]
    fn a_principal_may_be_limited_to_some_operations() {
        let caller = |token| principals().authenticate([token].into_iter()).unwrap();
        assert!(caller("Bearer old-token").may_call("orders"));
        assert!(!caller("Bearer old-token").may_call("refunds"));
        assert!(caller("Bearer shop-token").may_call("refunds"));
    }

    #[test]
    fn without_principals_everybody_is_the_empty_scope() {
        let caller = Principals::new(Vec::new()).authenticate(std::iter::empty()).unwrap();
        assert_eq!(caller.scope, Scope::default());
    }

    #[test]
    fn a_token_that_is_taken_away_is_nobodys_from_then_on() {
        let principals = principals();
        principals.replace(Vec::new());
        assert!(!principals.are_configured());
    }
}
