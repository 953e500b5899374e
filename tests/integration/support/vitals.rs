//! What a process takes from the machine, as Linux tells it.

use std::fs;

use super::daemon::Daemon;

/// What the daemon has in use.
#[derive(Clone, Copy, Debug)]
pub struct Vitals {
    /// Memory, in MiB.
    pub resident_mib: u64,
    /// The most that it ever was, in MiB.
    pub peak_mib: u64,
    pub threads: u64,
}

impl Vitals {
    /// What it has in use now.
    pub fn of(daemon: &Daemon) -> Vitals {
        let path = format!("/proc/{}/status", daemon.pid());
        let status = fs::read_to_string(&path).expect("the daemon runs");
        let number = |name: &str| -> u64 {
            let value = status.lines().find_map(|line| line.strip_prefix(name)).expect(name);
            value.trim().trim_end_matches(" kB").parse().expect("a number")
        };
        Vitals {
            resident_mib: number("VmRSS:") / 1024,
            peak_mib: number("VmHWM:") / 1024,
            threads: number("Threads:"),
        }
    }
}

/// The processor time that the daemon has used, in ticks of 10 ms.
pub fn ticks(daemon: &Daemon) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", daemon.pid())).expect("it runs");
    // The name, in parentheses, may hold spaces; user and system time are the 12th and 13th field after it.
    let (_, fields) = stat.rsplit_once(')').expect("a name in parentheses");
    fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
}
