//! Callers that use new keys without a pause, and call again until each is answered for good.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::client::{Answer, Client, fresh_key};
use super::daemon::ORDER;
use super::wait::{pause, until};

const CALLERS: usize = 6;
/// What a caller waits for before it calls again, where the daemon says one second.
const AGAIN: Duration = Duration::from_millis(50);

/// What the callers have been told so far.
#[derive(Default)]
pub struct Load {
    is_over: AtomicBool,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    answered: BTreeMap<String, Vec<u8>>,
    come_again: usize,
}

impl Load {
    /// Runs `act` under load, and gives the body that each key was answered with.
    pub fn while_doing(client: &Client, act: impl FnOnce(&Load)) -> BTreeMap<String, Vec<u8>> {
        let load = Load::default();
        thread::scope(|scope| {
            for _ in 0..CALLERS {
                scope.spawn(|| load.call(client));
            }
            // Also where `act` fails.
            let _over = Over(&load);
            act(&load);
        });
        load.told.into_inner().unwrap().answered
    }

    fn call(&self, client: &Client) {
        while !self.is_over.load(Ordering::Relaxed) {
            let key = fresh_key();
            let answer = until("a call is answered for good", || {
                let answer = client.post("orders", &key, ORDER);
                if answer.status == 201 {
                    return Ok(answer);
                }
                expect_come_again(&answer);
                self.told.lock().unwrap().come_again += 1;
                pause(AGAIN);
                Err(answer.text().to_owned())
            });
            self.told.lock().unwrap().answered.insert(key, answer.body);
        }
    }

    /// How many calls were answered for good.
    pub fn answered(&self) -> usize {
        self.told.lock().unwrap().answered.len()
    }

    /// How many calls were told to come again.
    pub fn come_again(&self) -> usize {
        self.told.lock().unwrap().come_again
    }

    /// Waits until so many more calls have been answered for good.
    pub fn goes_on(&self, more: usize) {
        let wanted = self.answered() + more;
        until("calls are answered", || {
            let answered = self.answered();
            if answered >= wanted { Ok(()) } else { Err(format!("{answered} of {wanted}")) }
        });
    }

    /// Waits until so many more calls have been told to come again.
    pub fn is_refused(&self, more: usize) {
        let wanted = self.come_again() + more;
        until("calls are told to come again", || {
            let told = self.come_again();
            if told >= wanted { Ok(()) } else { Err(format!("{told} of {wanted}")) }
        });
    }
}

struct Over<'a>(&'a Load);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// Fails where an answer is not one of those after which the same call is sent again.
pub fn expect_come_again(answer: &Answer) {
    let kind = answer.problem();
    let told = (answer.status, kind.as_str());
    let is_one = [(503, "unavailable"), (409, "request-in-progress")].contains(&told);
    assert!(is_one && answer.retry_after() == Some(1), "{answer:?}");
    assert_eq!(answer.json()["retryable"], true, "{answer:?}");
}
