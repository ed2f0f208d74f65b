//! The copies of the guest that run code ahead: how they begin, and how one becomes the guest.

use sandglass_core::Error;
use sandglass_core::session::{GuestInput, Input, ShadowId, Slot};

use super::slots::HeldGuest;
use super::task::SandboxTask;

impl SandboxTask {
    /// Has the guest make a copy of itself.
    pub(super) fn fork(&mut self, shadow: ShadowId) {
        let slot = Slot::Shadow(shadow);
        let main = self.slots.running(Slot::Main);
        match main.and_then(|running| running.forker.as_ref()) {
            Some(forker) => {
                let copy = forker.fork();
                self.slots.launch(slot, copy, Vec::new());
            }
            None => self.lost(slot, "the guest makes no copies of itself"),
        }
    }

    /// A copy takes the place of the guest.
    pub(super) fn promote(&mut self, shadow: ShadowId) {
        let replaced = self.slots.replace(Slot::Main, Slot::Shadow(shadow));
        let (Some(HeldGuest::Running(guest)), Some(copy)) = (replaced, self.slots.running_mut(Slot::Main)) else {
            // It has just gone, and the session believes that it is the guest.
            self.slots.take(Slot::Main);
            let lost = GuestInput::Lost(Error::GuestLost("the copy ended".to_owned()));
            return self.tell(Input::Guest(Slot::Main, lost));
        };
        if let Some(succession) = copy.succession.take() {
            succession.succeed();
        }
        // What was started for the first guest ends with the last one.
        copy.process = guest.process;
        self.begun = self.hits();
    }
}
