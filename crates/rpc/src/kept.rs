//! Executions that outlive the program: the methods `pending`, `resume`, `discard`, `last`, `replay`, `listPersisted` and
//! `deletePersisted`.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use sandglass_host::kept::{Pending, PendingCall, ReplayOptions, ResumeOptions};
use sandglass_host::{Value, sanitize_html};
use serde_json::Value as Json;
use serde_json::value::RawValue;

use crate::blobs::Named;
use crate::messages::{
    AllPersisted, DeletePersisted, Empty, Executed, Id, Last, ListPersisted, OfSandbox, Replay, Replayed, Resume,
    RpcError, Valued,
};
use crate::methods::{Context, begun, is_html};
use crate::options::name_of_kept;

impl Context {
    /// The execution that an earlier program has not finished, as one value.
    pub(crate) async fn pending(&self, _: &Id, of: OfSandbox, _: &mut Named) -> Result<Valued, RpcError> {
        let sandbox = self.in_turn(&of.sandbox).await?;
        let pending = match sandbox.kept() {
            Ok(kept) => {
                kept.settle().await?; // a resumption may have been cancelled
                kept.pending()
            }
            Err(_) => None,
        };
        Ok(Valued {
            value: self.client.put(pending.map_or(Value::None, described)),
        })
    }

    pub(crate) async fn resume(&self, id: &Id, params: Resume, blobs: &mut Named) -> Result<Executed, RpcError> {
        let executing = self.sandbox(&params.sandbox)?.executing(id);
        let (sandbox, turn) = self.turn(&params.sandbox).await?;
        let options = ResumeOptions {
            answers: params
                .answers
                .map_or(Ok(Vec::new()), |answers| answers_in(&answers, blobs))?,
            execute: self.execute_options(id, &sandbox, &executing, params.stream),
        };
        sandbox.kept()?;
        let execution = begun(sandbox.keeper().resume(options), turn).await?;
        drop(executing);
        Ok(self.executed(&sandbox, execution))
    }

    pub(crate) async fn discard(&self, _: &Id, of: OfSandbox, _: &mut Named) -> Result<Empty, RpcError> {
        self.in_turn(&of.sandbox).await?.kept()?.discard().await?;
        Ok(Empty {})
    }

    /// The last execution that has ended, also if that was in an earlier program.
    pub(crate) async fn last(&self, _: &Id, of: OfSandbox, _: &mut Named) -> Result<Last, RpcError> {
        let sandbox = self.in_turn(&of.sandbox).await?;
        let kept = sandbox.kept()?;
        kept.settle().await?; // a resumption may have been cancelled
        // The host has written it, so it is JSON.
        let mut execution: Option<Json> = kept.last().and_then(|last| serde_json::from_slice(&last).ok());
        if sandbox.clean_html {
            let displays = execution
                .as_mut()
                .and_then(|execution| execution.get_mut("displays")?.as_array_mut());
            for display in displays.into_iter().flatten() {
                if display["mime"].as_str().is_some_and(is_html)
                    && let Some(html) = display["data"].as_str()
                {
                    display["data"] = sanitize_html(html).into();
                }
            }
        }
        Ok(Last { execution })
    }

    pub(crate) async fn replay(&self, id: &Id, params: Replay, blobs: &mut Named) -> Result<Replayed, RpcError> {
        let executing = self.sandbox(&params.sandbox)?.executing(id);
        let (sandbox, turn) = self.turn(&params.sandbox).await?;
        let options = ReplayOptions {
            answers: params
                .answers
                .map_or(Ok(Vec::new()), |answers| answers_in(&answers, blobs))?,
            ask: params.ask,
            execute: self.execute_options(id, &sandbox, &executing, false),
        };
        sandbox.kept()?;
        let replayed = begun(sandbox.keeper().replay(params.execution, options), turn).await?;
        drop(executing);
        Ok(Replayed {
            execution: self.executed(&sandbox, replayed.execution),
            difference: replayed.difference,
        })
    }

    pub(crate) async fn list_persisted(
        &self,
        _: &Id,
        params: ListPersisted,
        _: &mut Named,
    ) -> Result<AllPersisted, RpcError> {
        let persisted = self.home.list_persisted(params.folder).await?;
        Ok(AllPersisted { persisted })
    }

    pub(crate) async fn delete_persisted(
        &self,
        _: &Id,
        params: DeletePersisted,
        _: &mut Named,
    ) -> Result<Empty, RpcError> {
        let name = name_of_kept("name", params.name)?;
        self.home.delete_persisted(name).await?;
        Ok(Empty {})
    }
}

/// A pending execution as a value.
pub fn described(Pending { execution, code, calls }: Pending) -> Value {
    let dict = |fields: Vec<(&str, Value)>| {
        let named = fields
            .into_iter()
            .map(|(name, value)| (Value::Str(name.to_owned()), value));
        Value::Dict(named.collect())
    };
    let call = |call: PendingCall| {
        let kwargs = call.kwargs.into_iter().map(|(name, value)| (Value::Str(name), value));
        dict(vec![
            ("id", Value::Str(call.id)),
            ("name", Value::Str(call.name)),
            ("args", Value::List(call.args)),
            ("kwargs", Value::Dict(kwargs.collect())),
            ("since", Value::Int(i64::try_from(call.since_ms).unwrap_or(i64::MAX))),
        ])
    };
    dict(vec![
        ("execution", Value::Int(execution.into())),
        ("code", Value::Str(code)),
        ("calls", Value::List(calls.into_iter().map(call).collect())),
    ])
}

/// The answers that a client gives to calls, by their names.
fn answers_in(answers: &RawValue, blobs: &mut Named) -> Result<Vec<(String, Value)>, RpcError> {
    let problem = || RpcError::InvalidParams("answers: must be an object with a value for each call".to_owned());
    let Value::Dict(answers) = blobs.value("answers", answers)? else {
        return Err(problem());
    };
    let named = answers.into_iter().map(|(id, value)| match id {
        Value::Str(id) => Ok((id, value)),
        _ => Err(problem()),
    });
    named.collect()
}
