package expression

import (
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

const (
	// PerCallLimit is the maximum cost of one evaluation. It is the same as in Kubernetes and corresponds to about 0.1 s.
	PerCallLimit = celconfig.PerCallLimit
	// MaxLength is the maximum length of an expression or a regular expression, in bytes.
	MaxLength = 4096

	maxRangeItems        = 10_000 // number of items of lists.range
	maxRegexInstructions = 2_000  // instructions in a compiled regular expression; a pattern for DNS labels has about 130
	maxValueDepth        = 64
	maxJSONBytes         = 1 << 20 // size of a JSON text; the same limit as for an object
	maxRandomLength      = 1_024   // length of a string from random.seededString
	// maxNodes is the maximum number of operations, constants and names in an expression after macro expansion. Type
	// checking takes time quadratic in this number.
	maxNodes = 1_000
	// maxTypeDepth is the maximum nesting depth of types in an expression. Type checking takes time cubic in this
	// depth.
	maxTypeDepth = 24

	// Limits for schemas. Schemas can be large, and recursive schemas are expanded. The types of values beyond these
	// limits are not checked.
	maxSchemaDepth = 32
	maxSchemaTypes = 20_000

	// Default sizes for the cost estimate if the schema sets no maximum. The actual cost is limited in any case.
	assumedLength = 256
	assumedItems  = 64
)
