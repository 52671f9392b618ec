"""Policy losses, in reading order: `policy_loss` (the seam), `registry`, `arguments`, one file for each loss or for a
few near ones: r is e^(logprob - old logprob), A the advantage, p the probability, sg takes no gradient."""
