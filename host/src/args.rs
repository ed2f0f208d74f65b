//! Command-line options that several programs and commands share.

mod controller;

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::rlm::Endpoint;
use crate::{BackendKind, Error, Limits, Settings, Users, Value};

pub use self::controller::ControllerArgs;

/// The environment variable that can hold keys.
pub const KEYS_VARIABLE: &str = "SANDGLASS_KEYS";
/// The environment variable that can hold the key of the model's endpoint.
const LLM_KEY_VARIABLE: &str = "SANDGLASS_LLM_KEY";
/// The environment variable that can hold the key of stored states.
const STATE_KEY_VARIABLE: &str = "SANDGLASS_STATE_KEY";

/// Options for guests, the same for all commands.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Guests")]
pub struct GuestArgs {
    /// The backend that isolates guests: auto, bubblewrap or docker. subprocess and jupyter isolate nothing, and auto never takes them.
    #[arg(long, env = "SANDGLASS_BACKEND", default_value = "auto", value_name = "NAME")]
    pub backend: BackendKind,
    /// The Python of bubblewrap and subprocess guests; by default /usr/bin/python3, or the first on PATH. With jupyter, the
    /// Python whose kernelspecs come first.
    #[arg(long, env = "SANDGLASS_PYTHON", value_name = "PROGRAM")]
    pub python: Option<PathBuf>,
    /// The image of Docker guests; by default sandglass-repl.
    #[arg(long, env = "REPL_DOCKER_IMAGE", value_name = "NAME")]
    pub image: Option<String>,
    /// The container runtime of Docker guests, such as runsc.
    #[arg(long, env = "SANDGLASS_DOCKER_RUNTIME", value_name = "NAME")]
    pub runtime: Option<String>,
    /// User ids for guests, if this program runs as root. Each guest gets its own. No account may have one of these ids.
    #[arg(long, env = "SANDGLASS_GUEST_USERS", default_value_t, value_name = "FIRST:COUNT")]
    pub guest_users: Users,
}

impl GuestArgs {
    /// The settings from which a backend plans.
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

/// The default timeout of an execution, in seconds.
pub fn timeout_seconds() -> f64 {
    Limits::default().timeout_ms / 1_000.0
}

/// Parses a timeout in seconds.
///
/// # Errors
/// The text is not a number from 0.001 to 2147483.
pub fn seconds(text: &str) -> Result<f64, String> {
    let fits = |seconds: &f64| Limits::default().set("timeout", seconds * 1_000.0).is_ok();
    let seconds = text.parse().ok().filter(fits);
    seconds.ok_or_else(|| "must be a number of seconds, from 0.001 to 2147483".to_owned())
}

/// The text of an error, for commands.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub fn told(error: Error) -> String {
    error.to_string()
}

/// The value in a file: a `.json` file is parsed, and any other file is a str.
///
/// # Errors
/// The file cannot be read, or is not valid JSON.
pub fn context(path: &Path) -> Result<Value, String> {
    let text = text_of(path)?;
    if path.extension().is_some_and(|extension| extension == "json") {
        let json = serde_json::from_str(&text).map_err(|error| format!("{} is no JSON: {error}", path.display()))?;
        return Value::from_json(json).map_err(told);
    }
    Ok(Value::Str(text))
}

/// The text of a file; `-` is standard input.
///
/// # Errors
/// The file cannot be read, or is not UTF-8.
pub fn text_of(path: &Path) -> Result<String, String> {
    let text = if path.as_os_str() == "-" {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    text.map_err(|error| format!("{} cannot be read: {error}", path.display()))
}

/// Options for the model that answers `llm_query`.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Model for llm_query")]
pub struct ModelArgs {
    /// The OpenAI-compatible endpoint for llm_query, such as `https://api.example.com/v1`. Its key is in the variable
    /// SANDGLASS_LLM_KEY.
    #[arg(long, env = "SANDGLASS_LLM_URL", value_name = "URL")]
    pub llm_url: Option<String>,
    /// The model for llm_query. Further names are models that Python can choose by `model=`.
    #[arg(long, env = "SANDGLASS_LLM_MODEL", value_delimiter = ',', value_name = "MODEL")]
    pub llm_model: Vec<String>,
}

impl ModelArgs {
    /// The endpoint, if one was given. Its first model answers when Python names none.
    ///
    /// # Errors
    /// No model was given, the address is invalid, or the key cannot be sent in a request.
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

/// Secrets that come from the environment, because other users can see a program's options.
#[derive(Default, Clone)]
pub struct Secrets {
    /// The text of `SANDGLASS_KEYS`.
    pub keys: Option<String>,
    /// The text of `SANDGLASS_LLM_KEY`.
    pub llm_key: Option<String>,
    /// The text of `SANDGLASS_STATE_KEY`.
    pub state_key: Option<String>,
}

impl Secrets {
    /// The secrets in this process's environment.
    ///
    /// # Errors
    /// A variable is not UTF-8.
    pub fn from_environment() -> Result<Self, String> {
        let read = |name: &str| match std::env::var(name) {
            Ok(value) => Ok(Some(value).filter(|value| !value.trim().is_empty())),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => Err(format!("{name} is no UTF-8")),
        };
        Ok(Self {
            keys: read(KEYS_VARIABLE)?,
            llm_key: read(LLM_KEY_VARIABLE)?,
            state_key: read(STATE_KEY_VARIABLE)?,
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
