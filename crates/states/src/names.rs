//! Ids, and the names of what is stored. A name is made of ids only, so no text of a client or a guest can lead to another place.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{StateError, no_random_numbers};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident $bytes:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub(crate) [u8; $bytes]);

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, formatter)
            }
        }

        impl FromStr for $name {
            type Err = StateError;

            fn from_str(text: &str) -> Result<Self, StateError> {
                let mut bytes = [0; $bytes];
                match read_hex(text, &mut bytes) {
                    true => Ok(Self(bytes)),
                    false => Err(StateError::Id(text.chars().take(80).collect(), 2 * $bytes)),
                }
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

ids! {
    /// The id of a session.
    SessionId 16;
    /// The id of a tenant: a keyed hash of the owner's name.
    TenantId 16;
    /// The id of an object: a keyed hash of its content.
    ObjectId 32;
    /// The random id of a server, from its start or from a lost lease on.
    ServerId 16;
    /// The id of a journal, which no other journal has.
    JournalId 16;
    /// The random id of a server's process, with which the ids of its sessions begin.
    HomeId 8;
}

/// Reads lowercase hexadecimal digits, so that each id has one text. Returns false for anything else.
pub(crate) fn read_hex(text: &str, bytes: &mut [u8]) -> bool {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    if text.len() != 2 * bytes.len() {
        return false;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let [high, low] = [digits[0], digits[1]].map(digit);
        let (Some(high), Some(low)) = (high, low) else {
            return false;
        };
        *byte = high << 4 | low;
    }
    true
}

/// The name of something stored. Its text is a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Name {
    /// A text that shows that a key is the store's.
    Check,
    /// A text that is written to learn the time of the store.
    Clock,
    /// The lease of a server.
    Lease(ServerId),
    /// The load of a server. Stores carry it, and keep none.
    Load(ServerId),
    /// An object of a tenant. In a store of several servers, each writes objects of its own.
    Object(TenantId, Option<ServerId>, ObjectId),
    /// The ref of a tenant's session.
    Ref(TenantId, SessionId),
    /// A part of the journal of a tenant's session, by its number. In a store of several servers, each writes parts of its own.
    Part(TenantId, SessionId, Option<ServerId>, u32),
}

impl ServerId {
    /// An id that no server had before.
    pub(crate) fn random() -> Result<Self, StateError> {
        random().map(Self)
    }
}

impl HomeId {
    /// An id that no process had before.
    pub(crate) fn random() -> Result<Self, StateError> {
        random().map(Self)
    }
}

impl SessionId {
    /// A new id, of a session that is made at this home.
    ///
    /// # Errors
    /// [`StateError::Key`] when the system gives no random numbers.
    pub fn random(home: Option<HomeId>) -> Result<Self, StateError> {
        let mut id: [u8; 16] = random()?;
        if let (Some(home), Some(begin)) = (home, id.first_chunk_mut()) {
            *begin = home.0;
        }
        Ok(Self(id))
    }

    /// The home with which the id begins. An id that no server made begins with anything.
    pub(crate) fn home(self) -> HomeId {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        HomeId([a, b, c, d, e, f, g, h])
    }
}

fn random<const BYTES: usize>() -> Result<[u8; BYTES], StateError> {
    let mut id = [0; BYTES];
    getrandom::fill(&mut id).map_err(|_| no_random_numbers())?;
    Ok(id)
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Check => formatter.write_str("check"),
            Self::Clock => formatter.write_str("clock"),
            Self::Lease(server) => write!(formatter, "{}/{server}", Place::Leases),
            Self::Load(server) => write!(formatter, "loads/{server}"),
            Self::Object(tenant, None, id) => write!(formatter, "{}/{id}", Place::Objects(*tenant)),
            Self::Object(tenant, Some(server), id) => {
                write!(formatter, "{}/{server}/{id}", Place::Objects(*tenant))
            }
            Self::Ref(tenant, id) => write!(formatter, "{}/{id}", Place::Refs(*tenant)),
            Self::Part(tenant, session, None, number) => {
                write!(formatter, "{}/{number:08x}", Place::Journal(*tenant, *session))
            }
            Self::Part(tenant, session, Some(server), number) => {
                write!(formatter, "{}/{server}/{number:08x}", Place::Journal(*tenant, *session))
            }
        }
    }
}

/// A place whose names can be listed. Its text is a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The leases of servers.
    Leases,
    /// The objects of a tenant.
    Objects(TenantId),
    /// The refs of a tenant's sessions.
    Refs(TenantId),
    /// The parts of the journal of a tenant's session.
    Journal(TenantId, SessionId),
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leases => formatter.write_str("servers"),
            Self::Objects(tenant) => write!(formatter, "{tenant}/objects"),
            Self::Refs(tenant) => write!(formatter, "{tenant}/sessions"),
            Self::Journal(tenant, session) => write!(formatter, "{tenant}/journals/{session}"),
        }
    }
}

impl Place {
    /// The name that the rest of a path means here; `None` if it means none.
    pub fn name(self, rest: &str) -> Option<Name> {
        match self {
            Self::Leases => rest.parse().ok().map(Name::Lease),
            Self::Objects(tenant) => match rest.split_once('/') {
                Some((server, id)) => Some(Name::Object(tenant, Some(server.parse().ok()?), id.parse().ok()?)),
                None => rest.parse().ok().map(|id| Name::Object(tenant, None, id)),
            },
            Self::Refs(tenant) => rest.parse().ok().map(|id| Name::Ref(tenant, id)),
            Self::Journal(tenant, session) => {
                let (server, rest) = match rest.split_once('/') {
                    Some((server, rest)) => (Some(server.parse().ok()?), rest),
                    None => (None, rest),
                };
                let mut number = [0; 4];
                read_hex(rest, &mut number).then(|| Name::Part(tenant, session, server, u32::from_be_bytes(number)))
            }
        }
    }

    /// Returns true if the name is in this place.
    pub fn has(self, name: &Name) -> bool {
        match (self, name) {
            (Self::Leases, Name::Lease(_)) => true,
            (Self::Objects(here), Name::Object(tenant, ..)) | (Self::Refs(here), Name::Ref(tenant, _)) => {
                here == *tenant
            }
            (Self::Journal(here, its), Name::Part(tenant, session, ..)) => here == *tenant && its == *session,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_id_has_one_text() {
        let text = "00112233445566778899aabbccddeeff";
        let id: SessionId = text.parse().unwrap();
        assert_eq!(id.to_string(), text);
        assert_eq!(serde_json::to_string(&id).unwrap(), format!("{text:?}"));
        assert_eq!(serde_json::from_str::<SessionId>(&format!("{text:?}")).unwrap(), id);
    }

    #[test]
    fn nothing_else_is_an_id() {
        let upper = "00112233445566778899AABBCCDDEEFF";
        let long = "0".repeat(33);
        let wide = "é".repeat(16);
        for text in [
            "",
            "..",
            "../../../../../../../../../../aa",
            "/0112233445566778899aabbccddeeff",
            "0011223344556677.899aabbccddeeff",
            "0011223344556677\u{0}899aabbccddeeff",
            "+0112233445566778899aabbccddeeff",
            upper,
            &long,
            &wide,
        ] {
            assert!(text.parse::<SessionId>().is_err(), "{text:?}");
            let tenant = TenantId([0; 16]);
            for place in [Place::Leases, Place::Refs(tenant), Place::Objects(tenant)] {
                assert!(place.name(text).is_none(), "{text:?}");
            }
        }
    }

    #[test]
    fn a_path_leads_back_to_its_name() {
        let tenant = TenantId([7; 16]);
        let (server, object) = (ServerId([6; 16]), ObjectId([9; 32]));
        for (place, name) in [
            (Place::Leases, Name::Lease(server)),
            (Place::Objects(tenant), Name::Object(tenant, None, object)),
            (Place::Objects(tenant), Name::Object(tenant, Some(server), object)),
            (Place::Refs(tenant), Name::Ref(tenant, SessionId([8; 16]))),
            (
                Place::Journal(tenant, SessionId([8; 16])),
                Name::Part(tenant, SessionId([8; 16]), None, 0x0102_0304),
            ),
            (
                Place::Journal(tenant, SessionId([8; 16])),
                Name::Part(tenant, SessionId([8; 16]), Some(server), 5),
            ),
        ] {
            let path = name.to_string();
            let rest = path.strip_prefix(&format!("{place}/")).unwrap();
            assert_eq!(place.name(rest), Some(name));
            assert!(place.has(&name) && !place.has(&Name::Check));
        }
    }
}
