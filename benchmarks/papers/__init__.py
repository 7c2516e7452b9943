"""The papers' tables and figures: what they report as data, a runner, and the page that sets ours beside theirs."""
