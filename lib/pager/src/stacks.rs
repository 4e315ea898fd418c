//! Images made of layers that are there, those that share layers sharing also
//! what is looked up.

use crate::compaction::LayerId;
use forkyard_image::{Image, ImageError, Layer};
use std::collections::HashMap;
use std::sync::Arc;

/// Every image made so far, by its topmost layer: a layer always lies over the
/// same ones.
#[derive(Debug, Default)]
pub(crate) struct Stacks(HashMap<LayerId, Image>);

impl Stacks {
    /// The image these layers make, the bottom first; `None` for none.
    pub fn image(&mut self, layers: &[Arc<Layer>]) -> Result<Option<Image>, ImageError> {
        let mut image: Option<Image> = None;
        for layer in layers {
            let next = match self.0.get(&LayerId::of(layer)) {
                Some(there) => there.clone(),
                None => Image::new(Arc::clone(layer), image.as_ref())?,
            };
            self.0.insert(LayerId::of(layer), next.clone());
            image = Some(next);
        }
        Ok(image)
    }
}
