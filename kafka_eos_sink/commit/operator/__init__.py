"""An operator's decisions after a failure: resolve a version, repair markers."""
