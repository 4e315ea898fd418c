//! State that layers above keep with a VM, by its type: it lives as long as the VM does, and this
//! layer knows nothing of it.

use crate::lock;
use std::{
    any::{Any, TypeId},
    collections::HashMap,
    sync::{Arc, Mutex},
};

/// State of one VM, a value for each type.
#[derive(Debug, Default)]
pub(crate) struct Attached(Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl Attached {
    /// Returns the value of this type: the default, if it is the first time.
    pub fn of<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let mut all = lock(&self.0);
        let value = all
            .entry(TypeId::of::<T>())
            .or_insert_with(|| Arc::new(T::default()));
        // Of that type, by its key.
        value.clone().downcast().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn each_type_has_one_value_that_every_reader_sees() {
        let attached = Attached::default();
        attached.of::<AtomicU32>().store(7, Ordering::SeqCst);
        assert_eq!(attached.of::<AtomicU32>().load(Ordering::SeqCst), 7);
        assert!(lock(&attached.of::<Mutex<String>>()).is_empty());
    }
}
