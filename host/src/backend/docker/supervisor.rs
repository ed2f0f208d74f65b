//! Supervisors: the process responsible for each container, and the removal of containers whose supervisor is gone.

use std::collections::HashMap;
use std::fs;

use bollard::Docker;
use bollard::query_parameters::{ListContainersOptionsBuilder, RemoveContainerOptionsBuilder};

use super::plan::SUPERVISOR_LABEL;
use crate::procfs;

/// A process, told apart from all others ever: process ids are used again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Supervisor {
    /// This start of the machine.
    boot: String,
    /// The PID namespace of the process id.
    namespace: String,
    pid: u32,
    /// The start of the process, in clock ticks since the machine booted.
    started: u64,
}

impl Supervisor {
    /// This process.
    pub fn own() -> Option<Self> {
        let pid = std::process::id();
        Some(Self {
            boot: boot()?,
            namespace: namespace()?,
            pid,
            started: started(pid)?,
        })
    }

    /// The value of the supervisor's label.
    pub fn label(&self) -> String {
        format!("{} {} {} {}", self.boot, self.namespace, self.pid, self.started)
    }

    fn parse(label: &str) -> Option<Self> {
        let mut parts = label.split(' ');
        let supervisor = Self {
            boot: parts.next()?.to_owned(),
            namespace: parts.next()?.to_owned(),
            pid: parts.next()?.parse().ok()?,
            started: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(supervisor)
    }

    /// Returns true if the supervisor has certainly ended. `own` cannot see processes of another namespace, so they count as
    /// alive until the machine has booted again.
    fn is_gone(&self, own: &Self) -> bool {
        self.boot != own.boot || (self.namespace == own.namespace && started(self.pid) != Some(self.started))
    }
}

fn boot() -> Option<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .ok()
        .map(|id| id.trim().to_owned())
}

fn namespace() -> Option<String> {
    let link = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(link.to_string_lossy().into_owned())
}

fn started(pid: u32) -> Option<u64> {
    let status = procfs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name is in brackets and may hold anything.
    let mut fields = status.rsplit_once(')')?.1.split_whitespace();
    // An ended process that nobody has collected is responsible for nothing.
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Removes the containers whose supervisor has ended, with all their processes.
pub async fn sweep(docker: &Docker, own: &Supervisor) {
    let ours = HashMap::from([("label", vec![SUPERVISOR_LABEL])]);
    let options = ListContainersOptionsBuilder::default().all(true).filters(&ours).build();
    let Ok(containers) = docker.list_containers(Some(options)).await else {
        return;
    };
    for container in containers {
        let label = container
            .labels
            .as_ref()
            .and_then(|labels| labels.get(SUPERVISOR_LABEL));
        let supervisor = label.and_then(|label| Supervisor::parse(label));
        if let (Some(id), Some(supervisor)) = (container.id, supervisor)
            && supervisor.is_gone(own)
        {
            tracing::info!(container = id, "removing a container whose supervisor has ended");
            remove(docker, &id).await;
        }
    }
}

/// Removes a container with all its processes.
pub async fn remove(docker: &Docker, id: &str) {
    let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
    if let Err(error) = docker.remove_container(id, Some(options)).await
        && !crate::engine::is_missing(&error)
    {
        tracing::debug!(container = id, %error, "a container was not removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_supervisor_is_known_by_its_label() {
        let own = Supervisor::own().unwrap();
        assert_eq!(Supervisor::parse(&own.label()), Some(own.clone()));
        assert_eq!(Supervisor::parse("something else"), None);
        assert_eq!(Supervisor::parse(&format!("{} more", own.label())), None);
        assert!(!own.is_gone(&own));
    }

    #[test]
    fn a_process_of_the_same_number_is_not_the_same_supervisor() {
        let own = Supervisor::own().unwrap();
        let earlier = Supervisor {
            started: own.started - 1,
            ..own.clone()
        };
        assert!(earlier.is_gone(&own));
        let before_the_restart = Supervisor {
            boot: "another".to_owned(),
            ..own.clone()
        };
        assert!(before_the_restart.is_gone(&own));
    }

    #[test]
    fn nothing_is_said_of_processes_that_cannot_be_seen() {
        let own = Supervisor::own().unwrap();
        let elsewhere = Supervisor {
            namespace: "pid:[1]".to_owned(),
            started: 1,
            ..own.clone()
        };
        assert!(!elsewhere.is_gone(&own));
    }
}
