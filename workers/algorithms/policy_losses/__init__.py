"""Policy losses, in reading order: `policy_loss` (the seam), `registry`, one file for each loss."""
