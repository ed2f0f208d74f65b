//! Options that several programs and commands share, for clap.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::rlm::Endpoint;
use crate::{BackendKind, Error, Limits, Settings, Users, Value};

/// The variable of the environment that may hold keys.
pub const KEYS_VARIABLE: &str = "SANDGLASS_KEYS";
/// The variable of the environment that may hold the key of the model's endpoint.
const LLM_KEY_VARIABLE: &str = "SANDGLASS_LLM_KEY";

/// Options that say where guests run, the same for all commands.
#[derive(Debug, Clone, clap::Args)]
pub struct GuestArgs {
    /// The backend: auto, bubblewrap or docker; or subprocess or jupyter, which isolate nothing, and which auto never takes.
    #[arg(long, env = "SANDGLASS_BACKEND", default_value = "auto", value_name = "NAME")]
    pub backend: BackendKind,
    /// The Python of bubblewrap and subprocess guests, by default /usr/bin/python3, else the first on PATH; with jupyter, one whose
    /// kernelspecs come first.
    #[arg(long, env = "SANDGLASS_PYTHON", value_name = "PROGRAM")]
    pub python: Option<PathBuf>,
    /// The image of Docker guests.
    #[arg(long, env = "REPL_DOCKER_IMAGE", value_name = "NAME")]
    pub image: Option<String>,
    /// The runtime of Docker guests, such as runsc.
    #[arg(long, env = "SANDGLASS_DOCKER_RUNTIME", value_name = "NAME")]
    pub runtime: Option<String>,
    /// User ids that guests get, one each, where this program runs as root. Nothing else on the machine may use them.
    #[arg(long, env = "SANDGLASS_GUEST_USERS", default_value_t, value_name = "FIRST:COUNT")]
    pub guest_users: Users,
}

impl GuestArgs {
    /// The settings that a backend plans from.
    pub fn settings(&self) -> Settings {
        Settings {
            python: self.python.clone(),
            image: self.image.clone(),
            runtime: self.runtime.clone(),
            guest_users: self.guest_users,
            ..Settings::default()
        }
    }
}

/// The time that code may run where nobody says.
pub fn timeout_seconds() -> f64 {
    Limits::default().timeout_ms / 1_000.0
}

/// A time that code may run.
pub fn seconds(text: &str) -> Result<f64, String> {
    let fits = |seconds: &f64| Limits::default().set("timeout", seconds * 1_000.0).is_ok();
    let seconds = text.parse().ok().filter(fits);
    seconds.ok_or_else(|| "must be a number of seconds, from 0.001 to 2147483".to_owned())
}

/// An error as commands tell it.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub fn told(error: Error) -> String {
    error.to_string()
}

/// The value in a file: what JSON says if it is named so, else text.
pub fn context(path: &Path) -> Result<Value, String> {
    let text = text_of(path)?;
    if path.extension().is_some_and(|extension| extension == "json") {
        let json = serde_json::from_str(&text).map_err(|error| format!("{} is no JSON: {error}", path.display()))?;
        return Value::from_json(json).map_err(told);
    }
    Ok(Value::Str(text))
}

/// A file's text; `-` is standard input.
pub fn text_of(path: &Path) -> Result<String, String> {
    let text = if path.as_os_str() == "-" {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    text.map_err(|error| format!("{} cannot be read: {error}", path.display()))
}

/// The model that answers `llm_query`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ModelArgs {
    /// The OpenAI-compatible endpoint that answers llm_query, such as https://api.example.com/v1; its key is taken from SANDGLASS_LLM_KEY.
    #[arg(long, env = "SANDGLASS_LLM_URL", value_name = "URL")]
    pub llm_url: Option<String>,
    /// The model that answers, and others that Python may name by `model=`.
    #[arg(long, env = "SANDGLASS_LLM_MODEL", value_delimiter = ',', value_name = "MODEL")]
    pub llm_model: Vec<String>,
}

impl ModelArgs {
    /// The endpoint, where there is one. The first model answers when Python names none.
    ///
    /// # Errors
    /// There is no model, the address is none, or no request can have the key.
    pub fn endpoint(&self, key: Option<String>) -> Result<Option<Endpoint>, String> {
        let Some(url) = &self.llm_url else { return Ok(None) };
        let (own, others) = self
            .llm_model
            .split_first()
            .ok_or("--llm-url needs --llm-model: the name of the model that answers")?;
        let mut endpoint = Endpoint::new(url, key, own)
            .map_err(|error| format!("--llm-url (its key is SANDGLASS_LLM_KEY): {error}"))?;
        endpoint.models = others.to_vec();
        Ok(Some(endpoint))
    }
}

/// Secrets, which come from the environment.
#[derive(Default, Clone)]
pub struct Secrets {
    /// `SANDGLASS_KEYS`.
    pub keys: Option<String>,
    /// `SANDGLASS_LLM_KEY`.
    pub llm_key: Option<String>,
}

impl Secrets {
    /// Those of this process.
    ///
    /// # Errors
    /// A variable is no UTF-8.
    pub fn from_environment() -> Result<Self, String> {
        let read = |name: &str| match std::env::var(name) {
            Ok(value) => Ok(Some(value).filter(|value| !value.trim().is_empty())),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => Err(format!("{name} is no UTF-8")),
        };
        Ok(Self {
            keys: read(KEYS_VARIABLE)?,
            llm_key: read(LLM_KEY_VARIABLE)?,
        })
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Secrets")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_needs_an_address_and_a_model() {
        let args = |url: &str, models: &[&str]| ModelArgs {
            llm_url: Some(url.to_owned()),
            llm_model: models.iter().map(|model| (*model).to_owned()).collect(),
        };
        let problem = args("https://api.example/v1", &[]).endpoint(None).unwrap_err();
        assert!(problem.contains("--llm-model"), "{problem}");
        let problem = args("api.example", &["m"]).endpoint(None).unwrap_err();
        assert!(
            problem.starts_with("--llm-url") && problem.contains("http or https"),
            "{problem}"
        );
        let secret = Some("secret-key".to_owned());
        let endpoint = args("https://api.example/v1/", &["m", "n"]).endpoint(secret);
        let endpoint = endpoint.unwrap().unwrap();
        assert_eq!(
            (endpoint.model.as_str(), endpoint.models.as_slice()),
            ("m", &["n".to_owned()][..])
        );
        let shown = format!("{endpoint:?}");
        assert!(
            shown.contains("https://api.example/v1/chat/completions") && !shown.contains("secret"),
            "{shown}"
        );
        assert!(ModelArgs::default().endpoint(None).unwrap().is_none());
    }
}
