//! User ids for the guests of a root host. Each guest gets an id when it is made, and the id is free again when no process has
//! it.
//!
//! The kernel counts some resources only by user: descriptors in flight, pages of pipes, watched files. Guests with the same id
//! share these counts, so one guest could use up the bound of all.
//!
//! The host locks a file in `LOCKS` for each id it uses, and other hosts on this machine skip locked ids. The first id of a
//! range is never given to a guest. It stands for root in a zygote's namespace, because mounts there need it. See
//! `docs/internals/guests-on-hosts.md`.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities};
use sandglass_core::Error;

use crate::procfs;

/// The user of all guests when they cannot have ids of their own.
pub const NOBODY: u32 = 65534;
/// The guest's user id inside its namespace.
pub(crate) const INSIDE: u32 = 1000;
/// The folder of the locks. It is root's.
const LOCKS: &str = "/run/sandglass/users";
/// The pause before the first look at processes that were told to end.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between two looks.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The pause after a look, as a multiple of the look's duration. So looks take at most a twentieth of a processor.
const PAUSE_PER_LOOK: u32 = 20;

/// A range of user ids, which are ids of groups as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Users {
    first: u32,
    count: u32,
}

/// The range lies above the ids that distributions, containers and user directories assign, and below 2^31, the limit of some
/// file systems.
impl Default for Users {
    fn default() -> Self {
        Self {
            first: 2_100_000_000,
            count: 65_536,
        }
    }
}

impl fmt::Display for Users {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.first, self.count)
    }
}

/// `FIRST:COUNT`
impl FromStr for Users {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = text
            .split_once(':')
            .and_then(|(first, count)| Some((first.parse().ok()?, count.parse().ok()?)));
        let fits = |(first, count): &(u32, u32)| {
            // The last number stands for no user at all.
            *first > 0 && *count >= 2 && first.checked_add(*count).is_some()
        };
        let (first, count) = parsed.filter(fits).ok_or_else(|| {
            let problem =
                format!("must be FIRST:COUNT, such as 2100000000:65536, with a count of at least 2, not \"{text}\"");
            Error::invalid("guest_users", problem)
        })?;
        let users = Self { first, count };
        // A zygote's namespace has the ids of the range under the same numbers. INSIDE is the zygote's own user there, and NOBODY
        // stands for all users that the namespace does not know.
        if let Some(taken) = [INSIDE, NOBODY].into_iter().find(|id| users.contains(*id)) {
            let problem = format!("must not contain {taken}: inside guests that id stands for other users");
            return Err(Error::invalid("guest_users", problem));
        }
        Ok(users)
    }
}

impl Users {
    /// The range, if this process can give its ids to guests: it must be root, and its user namespace must have the ids.
    pub fn here(self) -> Option<Self> {
        if !geteuid().is_root() {
            return None;
        }
        let has_all = ["uid_map", "gid_map"]
            .iter()
            .all(|map| fs::read_to_string(format!("/proc/self/{map}")).is_ok_and(|map| self.is_within(&map)));
        if !has_all {
            static WARNED: Once = Once::new();
            WARNED.call_once(|| {
                tracing::warn!(
                    "guests share one user id, and what the kernel counts by user: the ids {self} do not exist in this container. \
                     Name a range that does (--guest-users)"
                );
            });
        }
        has_all.then_some(self)
    }

    /// Returns true when the kernel's map of ids contains the whole range.
    fn is_within(self, map: &str) -> bool {
        let mut numbers = map.split_whitespace().map(str::parse::<u64>);
        let (first, end) = (u64::from(self.first), u64::from(self.first) + u64::from(self.count));
        while let (Some(Ok(inside)), Some(Ok(_)), Some(Ok(count))) = (numbers.next(), numbers.next(), numbers.next()) {
            if inside <= first && end <= inside + count {
                return true;
            }
        }
        false
    }

    /// Returns true when guests can have this id.
    pub fn contains(self, id: u32) -> bool {
        id > self.first && id - self.first < self.count
    }

    /// The id of some guest of a root host.
    pub(crate) fn any(self) -> u32 {
        self.here().map_or(NOBODY, |users| users.first + 1)
    }

    /// Takes a free id. Returns `nobody` when guests cannot have ids of their own, and `None` when the host is not root.
    ///
    /// # Errors
    /// [`Error::BootFailed`] when all ids are taken.
    pub fn take(self) -> Result<Option<Arc<User>>, Error> {
        match self.here() {
            Some(users) => users.take_one().map(Some),
            None => Ok(User::nobody()),
        }
    }

    /// Takes a free id of a range that is [here](Users::here).
    pub(crate) fn take_one(self) -> Result<Arc<User>, Error> {
        // The first id is random, because some hosts do not see each other's locks. An id that was given back is not the next
        // one.
        static NEXT: LazyLock<AtomicU32> = LazyLock::new(|| AtomicU32::new(getrandom::u32().unwrap_or(0)));
        let guests = self.count - 1;
        let any = || {
            let mut ids = (0..guests).map(|_| self.first + 1 + NEXT.fetch_add(1, Ordering::Relaxed) % guests);
            ids.find_map(|id| self.claim(id))
        };
        let free = any().or_else(|| {
            // Some may have become free since the last look.
            give_back_unused();
            any()
        });
        free.ok_or_else(|| {
            Error::BootFailed(format!(
                "all user ids of guests are taken ({self}): end some guests, or name a larger range (--guest-users)"
            ))
        })
    }

    fn claim(self, id: u32) -> Option<Arc<User>> {
        if !taken().insert(id) {
            return None;
        }
        match lock(id) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                taken().remove(&id);
                None
            }
            // No lock file can be made, so other hosts cannot see that the id is taken.
            lock => Some(User::of(Taken {
                id,
                lock: lock.ok().map(Lock),
            })),
        }
    }

    /// Takes the id of a folder's owner. The owner's last guest may still be ending, because the next guest in the folder has
    /// the same id anyway.
    pub(crate) fn claim_again(self, id: u32) -> Option<Arc<User>> {
        let leaving = {
            let mut leaving = leaving();
            let at = leaving.ids.iter().position(|(_, taken)| taken.id == id);
            at.map(|at| leaving.ids.swap_remove(at).1)
        };
        leaving.map(User::of).or_else(|| self.claim(id))
    }

    /// The map of ids for a zygote with the id `own`, as the kernel reads it. The guests' ids are the same inside and outside.
    pub(crate) fn map_around(self, own: u32) -> String {
        let end = self.first + self.count;
        let mut map = format!("{INSIDE} {own} 1\n0 {} 1\n", self.first);
        for (from, to) in [(self.first + 1, own), (own + 1, end)] {
            if from < to {
                map += &format!("{from} {from} {}\n", to - from);
            }
        }
        map
    }
}

/// Returns true when this process can set the ids of another process's user namespace.
pub(crate) fn can_map() -> bool {
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::SETUID | CapabilitySet::SETGID;
    capabilities(None).is_ok_and(|own| own.effective.contains(needed))
}

/// Returns true when this process can start others with other user ids.
pub(crate) fn can_change_user() -> bool {
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
    capabilities(None).is_ok_and(|own| own.effective.contains(needed))
}

/// A guest's user id. After the drop it becomes free when no process has it.
#[derive(Debug)]
pub struct User {
    id: u32,
    group: u32,
    /// The taken id; `None` if another holder gives it back.
    taken: Option<Taken>,
}

impl User {
    fn of(taken: Taken) -> Arc<Self> {
        Arc::new(Self {
            id: taken.id,
            group: taken.id,
            taken: Some(taken),
        })
    }

    /// A user id that another holder has taken.
    pub(crate) fn shared(id: u32, group: u32) -> Arc<Self> {
        let taken = None;
        Arc::new(Self { id, group, taken })
    }

    /// The user `nobody`, for guests of a root host without ids for them.
    pub(crate) fn nobody() -> Option<Arc<Self>> {
        geteuid().is_root().then(|| Self::shared(NOBODY, NOBODY))
    }

    /// The number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The ids of the user and its group.
    pub fn ids(&self) -> (u32, u32) {
        (self.id, self.group)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        if let Some(taken) = self.taken.take() {
            leave(taken);
        }
    }
}

/// A taken id with its lock. Dropping it gives the id back.
#[derive(Debug)]
struct Taken {
    id: u32,
    /// The lock; `None` when no lock file could be made.
    lock: Option<Lock>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        drop(self.lock.take());
        taken().remove(&self.id);
    }
}

/// A lock file that other hosts see.
#[derive(Debug)]
struct Lock((PathBuf, File));

impl Drop for Lock {
    fn drop(&mut self) {
        // The file is removed before the unlock, so another process that has opened it sees that it is gone.
        let _ = fs::remove_file(&self.0.0);
    }
}

/// The ids that this process has taken.
fn taken() -> MutexGuard<'static, BTreeSet<u32>> {
    static TAKEN: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ids whose guests were told to end. Killed processes take a moment to end, and the kernel counts them until then.
#[derive(Debug)]
struct Leaving {
    /// Each id with the number of looks that had begun before it was added.
    ids: Vec<(u64, Taken)>,
    looks: u64,
    /// True while a thread watches these ids.
    is_watched: bool,
}

fn leaving() -> MutexGuard<'static, Leaving> {
    static LEAVING: Mutex<Leaving> = Mutex::new(Leaving {
        ids: Vec::new(),
        looks: 0,
        is_watched: false,
    });
    LEAVING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives an id back when no process has it any more.
fn leave(taken: Taken) {
    let mut leaving = leaving();
    let looks = leaving.looks;
    leaving.ids.push((looks, taken));
    if !leaving.is_watched {
        let thread = thread::Builder::new().name("sandglass-users".to_owned());
        // If the thread cannot start, the next id that leaves or is taken tries again.
        leaving.is_watched = thread.spawn(watch).is_ok();
    }
}

/// Watches leaving ids until there are none.
fn watch() {
    let mut pause = SHORTEST_PAUSE;
    let mut looks = 0;
    loop {
        thread::sleep(pause);
        let began = Instant::now();
        give_back_unused();
        let took = began.elapsed();
        let mut leaving = leaving();
        if leaving.ids.is_empty() {
            leaving.is_watched = false;
            return;
        }
        let is_any_new = leaving.ids.iter().any(|(added, _)| *added > looks);
        looks = leaving.looks;
        drop(leaving);
        let longer = if is_any_new {
            SHORTEST_PAUSE
        } else {
            (pause * 2).min(LONGEST_PAUSE)
        };
        pause = longer.max(took * PAUSE_PER_LOOK);
    }
}

/// Waits until the leaving ids are given back, before this process ends. Ids that are still used after `within` become free
/// when the process has ended.
pub fn settle(within: Duration) {
    let deadline = Instant::now() + within;
    loop {
        give_back_unused();
        if leaving().ids.is_empty() || Instant::now() >= deadline {
            return;
        }
        thread::sleep(SHORTEST_PAUSE);
    }
}

/// Gives back the leaving ids that no process has.
fn give_back_unused() {
    let look = {
        let mut leaving = leaving();
        leaving.looks += 1;
        leaving.looks
    };
    let used = users_of_processes();
    // Ids that were added after the look began are kept, because the look may have missed their processes.
    leaving()
        .ids
        .retain(|(added, taken)| *added >= look || used.contains(&taken.id));
}

/// The user ids of all visible processes.
fn users_of_processes() -> BTreeSet<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit));
    processes
        .filter_map(|process| procfs::read(process.path().join("status")).ok())
        .flat_map(|status| users_of(&status))
        .collect()
}

/// The user ids of a process, from its `/proc` status; empty after its end. The owner of its `/proc` folder would be wrong,
/// because that is root for a process that hides itself.
fn users_of(status: &str) -> Vec<u32> {
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or_default()
    };
    // The state shows only the main thread's end. Other threads may go on.
    let has_ended =
        field("State:").trim_start().starts_with(['Z', 'X']) && matches!(field("Threads:").trim(), "" | "0" | "1");
    if has_ended {
        return Vec::new();
    }
    field("Uid:")
        .split_whitespace()
        .filter_map(|id| id.parse().ok())
        .collect()
}

fn lock(id: u32) -> io::Result<(PathBuf, File)> {
    let folder = Path::new(LOCKS);
    if !folder.is_dir() {
        DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    }
    let path = folder.join(id.to_string());
    loop {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        // The previous holder may have removed the file.
        if file.metadata()?.nlink() > 0 {
            return Ok((path, file));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_read_as_it_is_written() {
        let users: Users = "3000000:100".parse().unwrap();
        assert_eq!(users.to_string(), "3000000:100");
        for bad in ["", "5", "0:100", "5:1", "5:-1", "4294967290:6", "a:b", "1:2:3"] {
            assert_eq!(bad.parse::<Users>().unwrap_err().code(), "invalid_option", "{bad}");
        }
    }

    #[test]
    fn nobody_has_what_another_one_has() {
        // This range differs from that of a test which runs in another checkout at the same time.
        let first = 3_000_000 + std::process::id() * 10;
        let users: Users = format!("{first}:4").parse().unwrap();
        let all: Vec<_> = (0..3).map(|_| users.take_one().unwrap()).collect();
        let mut ids: Vec<u32> = all.iter().map(|user| user.id()).collect();
        ids.sort_unstable();
        assert_eq!(ids, [first + 1, first + 2, first + 3]); // the first one is root's in namespaces
        assert!(
            users
                .take_one()
                .unwrap_err()
                .to_string()
                .contains(&format!("{first}:4"))
        );
        drop(all);
        assert!(users.contains(users.take_one().unwrap().id()));
    }

    /// A process with this user id that runs until it is killed.
    struct Sleeper(std::process::Child);

    impl Sleeper {
        fn start(user: u32) -> Self {
            use std::os::unix::process::CommandExt;
            let mut sleep = std::process::Command::new("sleep");
            Self(sleep.arg("9999").uid(user).current_dir("/").spawn().unwrap())
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    #[test]
    fn an_id_stays_taken_for_as_long_as_a_process_has_it() {
        if !geteuid().is_root() {
            return;
        }
        // This range differs from that of a test which runs in another checkout at the same time.
        let first = 1_500_000_000 + std::process::id() * 10;
        let users: Users = format!("{first}:2").parse().unwrap();
        let user = users.take_one().unwrap();
        let id = user.id();
        let sleeper = Sleeper::start(id);
        drop(user);
        let path = Path::new(LOCKS).join(id.to_string());
        for _ in 0..3 {
            give_back_unused();
            assert!(users.take_one().is_err());
            assert!(path.exists());
        }
        // The next guest of the folder has the same id, which nobody else can have taken meanwhile.
        let again = users.claim_again(id).unwrap();
        assert!(again.taken.is_some() && users.claim_again(id).is_none());
        drop(sleeper);
        give_back_unused();
        assert!(path.exists() && users.take_one().is_err());
        drop(again);
        assert_eq!(users.take_one().unwrap().id(), id);
    }

    #[test]
    fn a_process_that_has_ended_is_nobody() {
        let status = |state: &str, threads: u32| {
            users_of(&format!(
                "Name:\tx\nState:\t{state}\nUid:\t7\t7\t7\t8\nGid:\t9\t9\t9\t9\nThreads:\t{threads}\n"
            ))
        };
        assert_eq!(status("S (sleeping)", 1), [7, 7, 7, 8]);
        assert_eq!(status("Z (zombie)", 1), [] as [u32; 0]);
        assert_eq!(status("Z (zombie)", 2), [7, 7, 7, 8]);
        assert_eq!(users_of(""), [] as [u32; 0]);
        assert!(users_of_processes().contains(&geteuid().as_raw()));
    }

    #[test]
    fn a_range_has_to_be_in_one_piece_in_the_own_namespace() {
        let users = Users::default();
        assert!(users.is_within("         0          0 4294967295\n"));
        assert!(!users.is_within("0 100000 65536\n"));
        assert!(users.is_within("0 1000 1\n2100000000 5 65536\n"));
        assert!(!users.is_within("0 1000 1\n2100000000 5 65535\n"));
        assert!(!users.is_within(""));
    }

    #[test]
    fn a_zygotes_namespace_has_each_id_once() {
        let users: Users = "3000000:10".parse().unwrap();
        assert_eq!(
            users.map_around(3_000_004),
            "1000 3000004 1\n0 3000000 1\n3000001 3000001 3\n3000005 3000005 5\n"
        );
        assert_eq!(
            users.map_around(3_000_001),
            "1000 3000001 1\n0 3000000 1\n3000002 3000002 8\n"
        );
        assert_eq!(
            users.map_around(3_000_009),
            "1000 3000009 1\n0 3000000 1\n3000001 3000001 8\n"
        );
    }
}
