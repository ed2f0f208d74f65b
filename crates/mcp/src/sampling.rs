//! The client's model as `llm_query`: the protocol's *sampling*.
#![expect(
    deprecated,
    reason = "sampling has no successor in the versions of the protocol that have sessions"
)]

use rmcp::RoleServer;
use rmcp::model::{ClientCapabilities, CreateMessageRequestParams, ModelHint, ModelPreferences, SamplingMessage};
use rmcp::service::Peer;

use crate::questions::Question;

/// The most tokens of an answer of the client's model. The protocol asks for a number.
const MAX_ANSWER_TOKENS: u32 = 8_192;

/// Returns true when the client offers its model.
pub fn samples(client: &ClientCapabilities) -> bool {
    client.sampling.is_some()
}

/// Asks the client's model.
pub async fn sample(peer: &Peer<RoleServer>, mut question: Question) {
    let messages = vec![SamplingMessage::user_text(std::mem::take(&mut question.prompt))];
    let mut asked = CreateMessageRequestParams::new(messages, MAX_ANSWER_TOKENS);
    if let Some(model) = &question.model {
        let preferences = ModelPreferences::new().with_hints(vec![ModelHint::new(model)]);
        asked = asked.with_model_preferences(preferences);
    }
    let answer = match peer.create_message(asked).await {
        Ok(result) => {
            let texts = result.message.content.iter().filter_map(|content| content.as_text());
            let text: Vec<&str> = texts.map(|text| text.text.as_str()).collect();
            if text.is_empty() {
                Err("the client's model answered without text".to_owned())
            } else {
                Ok(text.concat())
            }
        }
        Err(error) => Err(format!("the client did not answer (sampling): {error}")),
    };
    question.answer(answer);
}
