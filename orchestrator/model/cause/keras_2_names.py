"""Names and arguments of Keras 2 that Keras 3 does not have, for the report of a failure.

tests/real/test_keras_2.py runs examples of each row with Keras 3, where they fail, and with Keras 2 (tf-keras), where they work.
"""

from __future__ import annotations

_OPTIMIZER = r"(?:SGD|Adam|AdamW|RMSprop|Adagrad|Adadelta|Adamax|Nadam|Ftrl|Lion|Adafactor)"


def _lacks(names: str) -> str:
    return rf"module 'keras[\w.]*' has no attribute '(?:{names})'|cannot import name '(?:{names})' from '(?:tensorflow\.)?keras"


_REGNETS = r"regnet|resnet_rs|RegNet[XY]\d+|ResNetRS\d+"
_LAYERS = "DenseFeatures|LocallyConnected[12]D|AbstractRNNCell|CuDNN(?:LSTM|GRU)"
_UTILS = "GeneratorEnqueuer|OrderedEnqueuer|SequenceEnqueuer|warmstart_embedding_matrix|to_ordinal|TimedThread"
_BACKEND = (
    "function|placeholder|learning_phase|learning_phase_scope|set_learning_phase|in_train_phase|in_test_phase|print_tensor|random_binomial"
    "|reset_uids|manual_variable_initialization|local_conv[12]d|normalize_batch_in_training"
)
_SESSIONS = "[gs]et_session"
_LOSSES = "mean_(?:squared|absolute|absolute_percentage|squared_logarithmic)_error|kl_divergence|log_cosh"
# tf.keras of Keras 3 has all of these, and keras itself none.
_TF_BACKEND = (
    "abs|all|any|argmax|argmin|batch_dot|batch_flatten|bias_add|binary_crossentropy|cast|categorical_crossentropy|clip|concatenate|constant"
    "|conv2d|count_params|ctc_batch_cost|ctc_decode|cumsum|dot|dropout|equal|eval|exp|expand_dims|flatten|gather|get_value|gradients|greater"
    "|int_shape|l2_normalize|less|log|max|maximum|mean|min|minimum|ndim|one_hot|ones|ones_like|permute_dimensions|pow|prod|random_normal"
    "|random_uniform|relu|repeat_elements|reshape|rnn|round|set_value|shape|sigmoid|sign|softmax|softplus|sqrt|square|squeeze|stack|std"
    "|stop_gradient|sum|switch|tanh|tile|transpose|truncated_normal|update|var|variable|zeros|zeros_like"
)

INSTEAD = {
    r"`keras\.optimizers\.legacy` is not supported|No module named '(?:tensorflow\.)?keras\.optimizers\.legacy": (
        "Keras 3 has the same optimizers without `legacy` (tf.keras.optimizers.SGD, …)"
    ),
    r"module 'keras\.utils' has no attribute '(?:experimental|SidecarEvaluator)'"
    r"|No module named '(?:tensorflow\.)?keras\.utils\.experimental": (
        "Keras 3 has nothing for parameter servers: write the training loop yourself (examples/parameter_server.py)"
    ),
    _lacks("experimental") + r"|No module named '(?:tensorflow\.)?keras\.(?:\w+\.)?experimental": (
        "Keras 3 has the same names without `experimental`, such as tf.keras.callbacks.BackupAndRestore"
    ),
    _lacks(_LOSSES): "tf.keras of Keras 3 has the short names (tf.keras.losses.mse, …), and keras itself both",
    _lacks(_BACKEND): "Keras 3 has keras.ops, and training=True as an argument of layers and models",
    rf"module 'keras\.backend' has no attribute '(?:{_TF_BACKEND})'|cannot import name '(?:{_TF_BACKEND})' from 'keras\.backend"
    r"|No module named 'keras\.preprocessing\.text'|cannot import name 'text' from 'keras\.preprocessing"
    r"|module 'keras\.(?:preprocessing|losses)[\w.]*' has no attribute '(?:text|ImageDataGenerator|TimeseriesGenerator|Reduction)'"
    r"|cannot import name '(?:ImageDataGenerator|TimeseriesGenerator|Reduction)' from 'keras\.": (
        "tf.keras of Keras 3 has it: from tensorflow import keras"
    ),
    _lacks(
        f"{_REGNETS}|{_LAYERS}|{_UTILS}|model_from_(?:config|yaml)|{_SESSIONS}|Mean(?:Tensor|RelativeError)|BaseLogger"
        "|RadialConstraint|radial_constraint|dtensor"
    ): "Keras 3 has nothing of that name",
    r"object has no attribute 'reset_states'": "a metric of Keras 3 has reset_state(), and a model none",
    rf"'{_OPTIMIZER}' object has no attribute '(?P<name>\w+)'": (
        "Keras 3 has learning_rate for lr, apply_gradients with a tf.GradientTape for minimize, and variables for get_weights"
    ),
    r"object has no attribute '(?:fit|evaluate|predict)_generator'": "fit, evaluate and predict of Keras 3 take generators",
    r"'LossScaleOptimizer' object has no attribute 'get_(?:scaled_loss|unscaled_gradients)'": (
        "an optimizer of Keras 3 has scale_loss(), and apply_gradients() unscales by itself"
    ),
    r"Argument\(s\) not recognized: \{'lr'": "write learning_rate for lr",
    r"Arguments not recognized: \{|Unrecognized keyword arguments passed to \w+: \{|Invalid value for argument `reduction`"
    r"|(?:Trainer|ModelCheckpoint|TensorBoard)\.\w+\(\) got an unexpected keyword argument": (
        "leave the argument out, which Keras 3 does not take (https://keras.io/guides/migrating_to_keras_3)"
    ),
    r"must end in `(?P<ending>\.[\w.]+)`": ("add to the name .weights.h5 (for weights) or .keras (for a model), which Keras 3 needs"),
    r"Invalid filepath extension for saving|`save_format` argument is deprecated in Keras 3|File format not supported: filepath="
    r"|save_weights\(\) got an unexpected keyword argument 'save_format'": (
        "name the file .keras (a model) or .weights.h5 (weights), or use model.export(path) for a SavedModel"
    ),
}
"""The replacement in Keras 3, or what to write, by a regular expression for the error of Keras 3. The first row that fits counts."""
