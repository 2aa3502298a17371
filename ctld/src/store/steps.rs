//! Named steps inside transactions, at which a test can hold one to let another go ahead. In a running controller they are
//! nothing.

/// Says that the transaction has come to this step.
#[cfg(not(test))]
#[inline]
pub(super) async fn reached(_step: &'static str) {}

#[cfg(test)]
pub(super) use gated::{gated, reached};

#[cfg(test)]
mod gated {
    use std::sync::Arc;
    use tokio::sync::{Semaphore, oneshot};

    tokio::task_local! {
        static GATE: Gate;
    }

    #[derive(Clone)]
    struct Gate {
        step: &'static str,
        arrived: Arc<std::sync::Mutex<Option<oneshot::Sender<()>>>>,
        open: Arc<Semaphore>,
    }

    /// Holds the current task, if it is to be held, at its step.
    pub(in crate::store) async fn reached(step: &'static str) {
        let Ok(gate) = GATE.try_with(Clone::clone) else { return };
        let arrived = if gate.step == step { gate.arrived.lock().unwrap().take() } else { None };
        if let Some(arrived) = arrived {
            let _ = arrived.send(());
            gate.open.acquire().await.unwrap().forget();
        }
    }

    /// Runs an act that waits when it first comes to `step`: told by the receiver, until a permit is added. An act that
    /// never comes there drops the sender's end when it is over.
    pub(in crate::store) fn gated<F: Future>(
        step: &'static str,
        act: F,
    ) -> (impl Future<Output = F::Output>, oneshot::Receiver<()>, Arc<Semaphore>) {
        let (sender, arrived) = oneshot::channel();
        let open = Arc::new(Semaphore::new(0));
        let gate = Gate { step, arrived: Arc::new(std::sync::Mutex::new(Some(sender))), open: open.clone() };
        (GATE.scope(gate, act), arrived, open)
    }
}
