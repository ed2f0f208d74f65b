//! The method `fork`, which copies sandboxes.

use std::sync::Arc;

use futures_util::future::try_join_all;
use sandglass_core::execution::LostVariable;
use sandglass_host::sandbox::{SandboxCopy, Suspended, number_of_copies};

use crate::blobs::Named;
use crate::messages::{Fork, Forked, Id, RpcError};
use crate::methods::Context;
use crate::options::Options;
use crate::sandbox::{Caller, ClientSandbox};

impl Context {
    pub(crate) async fn fork(&self, _: &Id, params: Fork, _: &mut Named) -> Result<Forked, RpcError> {
        let count = number_of_copies(params.count);
        let count = count.map_err(|problem| RpcError::InvalidParams(format!("count: {problem}")))?;
        let original = self.in_turn(&params.sandbox).await?;
        let options = original.options();
        if options.local.workspace.is_some() {
            let problem = "a sandbox with a workspace of its own cannot be copied: both would write into the same folder; nothing was done";
            return Err(RpcError::InvalidParams(format!("fork: {problem}")));
        }
        if params.exact {
            let admitted = original.keeper().admit(None)?;
            let copies = original.own().await?.fork(count).await?.into_iter();
            drop(admitted);
            let copies = try_join_all(copies.map(|copy| self.exact_copy(&options, copy))).await?;
            return Ok(Forked {
                sandboxes: copies.into_iter().map(|copy| self.add(copy)).collect(),
                lost: Vec::new(),
            });
        }
        let most_bytes = self.home.bounds().max_state_bytes;
        let admitted = original.keeper().admit(None)?; // pickling runs the user's code
        let suspended = original.own().await?.suspend(most_bytes).await?;
        drop(admitted);
        let make = |_| self.copy(&options, &suspended, most_bytes);
        let (copies, lost) = suspended.copies(0..count, make).await?;
        let sandboxes = copies.into_iter().map(|copy| self.add(copy)).collect();
        Ok(Forked { sandboxes, lost })
    }

    /// An exact copy. Its guest starts when it is first needed.
    async fn exact_copy(&self, options: &Options, copy: SandboxCopy) -> Result<Arc<ClientSandbox>, RpcError> {
        let caller = Caller::new(Arc::clone(&self.client));
        let functions = caller.functions_of(options)?;
        let with_copy = move |builder| functions(builder).copy(copy);
        let made = self.home.make(options.clone(), Box::new(with_copy)).await?;
        Ok(Arc::new(ClientSandbox::new(made, caller, options.clone())))
    }

    /// A copy, and the variables that it could not take.
    async fn copy(
        &self,
        options: &Options,
        suspended: &Suspended,
        most_bytes: u64,
    ) -> Result<(Arc<ClientSandbox>, Vec<LostVariable>), RpcError> {
        let caller = Caller::new(Arc::clone(&self.client));
        let functions = caller.functions_of(options)?;
        let original = suspended.clone();
        let with_past = move |builder| original.begin(functions(builder));
        let made = self.home.make(options.clone(), Box::new(with_past)).await?;
        let copy = Arc::new(ClientSandbox::new(made, caller, options.clone()));
        let _admitted = copy.keeper().admit(None)?; // opening a state runs code, too
        let lost = copy.own().await?.take_up(suspended, most_bytes).await?;
        Ok((copy, lost))
    }
}
