"""The op table: what LiteRT's kernels accept and produce, one row per op."""

from .spec import BIAS_TYPE as BIAS_TYPE
from .spec import CLAMPS as CLAMPS
from .spec import FUSED_ACTIVATIONS as FUSED_ACTIVATIONS
from .spec import FUSED_CODES as FUSED_CODES
from .spec import Activation as Activation
from .spec import Bias as Bias
from .spec import CellState as CellState
from .spec import Coefficients as Coefficients
from .spec import FloatConstant as FloatConstant
from .spec import KernelSpec as KernelSpec
from .spec import Need as Need
from .spec import OpSpec as OpSpec
from .spec import OutputState as OutputState
from .spec import Probabilities as Probabilities
from .spec import Rescale as Rescale
from .spec import Role as Role
from .spec import ShapeOnly as ShapeOnly
from .spec import Trait as Trait
from .spec import Untouched as Untouched
from .spec import Weight as Weight
from .spec import fused_activation as fused_activation
from .table import CONVERSIONS as CONVERSIONS
from .table import OPS as OPS
from .table import REWRITTEN as REWRITTEN
from .table import UNPACKED_SINCE as UNPACKED_SINCE
from .table import UNPACKING as UNPACKING
