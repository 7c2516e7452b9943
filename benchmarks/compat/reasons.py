"""Why some of Opacus's own tests fail on saltflat, and which of its files are not run."""

from __future__ import annotations

NOT_RUN = {
    "mixed_precision_test": "GPUs",
    "multidevice_optimizer_test": "several GPUs",
    "multigpu_adaptive_clipping_test": "several GPUs",
    "multigpu_gradcheck_test": "several GPUs",
    "multigpu_precision_test": "several GPUs",
}
"""File → what it needs that is not there."""

_PRV = "Opacus adds an error of 0.01 to ε. Here ε is an upper bound without it, so it is smaller, and so is the noise"
_GDP = "a central limit understates ε: 6.59 where 6.77 is true. Here it is computed by privacy loss distributions"
_EW = "it wants an error for a model that `ew` cannot take in Opacus. Here every mode takes it"
_COINS = "it wants a seed's first batch. Coins are drawn in float64 here; in float32, rates are off by up to 6·10⁻⁸"
_HOOKS = "it counts Opacus's hooks. Here there are none"

REASONS = {
    "accountants_test::AccountingTest.test_prv_accountant": _PRV,
    "accountants_test::AccountingTest.test_get_noise_multiplier_prv_epochs": _PRV,
    "accountants_test::AccountingTest.test_get_noise_multiplier_prv_steps": _PRV,
    "accountants_test::AccountingTest.test_gdp_accountant": _GDP,
    "accountants_test::AccountingTest.test_get_noise_multiplier_gdp": _GDP,
    "prv_accountant::PRVAccountantTest.test_values": _PRV,
    "privacy_engine_validation_test::PrivacyEngineValidationTest.test_unsupported_ew": _EW,
    "privacy_engine_validation_test::PrivacyEngineValidationTest.test_extra_param_ew": _EW,
    "dpdataloader_test::DPDataLoaderTest.test_collate_classes": _COINS,
    "dpdataloader_test::DPDataLoaderTest.test_collate_tensor": _COINS,
    "dpdataloader_test::DPDataLoaderEmptyFirstBatchTest.test_empty_first_batch_with_dp_dataloader": (
        "it wants a line in the log that says that a batch was empty. The size of a batch is private"
    ),
    "grad_sample_hooks_fast_gradient_clipping_test::"
    "GradSampleHooksFastGradientClippingTest.test_hooks_creation": _HOOKS,
    "grad_sample_hooks_fast_gradient_clipping_test::"
    "GradSampleHooksFastGradientClippingTest.test_cleanup": _HOOKS,
    "grad_sample_module_fast_gradient_clipping_test::"
    "GradSampleModuleFastGradientClippingEmbeddingLayerTest.test_gradient_calculation": (
        "Opacus multiplies three factors with losses of shape 3 × 1, so each example gets the sum of all factors. "
        "A gradient divided by 3 then equals one that is not"
    ),
}
"""File::class.test → why it is right that it fails."""
