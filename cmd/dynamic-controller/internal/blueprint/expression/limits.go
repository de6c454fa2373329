package expression

import (
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

const (
	// PerCallLimit is the maximum cost of one evaluation. It is Kubernetes' limit and takes about 0.1 s.
	PerCallLimit = celconfig.PerCallLimit
	// MaxLength is the maximum length of an expression or a regular expression, in bytes.
	MaxLength = 4096

	maxRangeItems        = 10_000 // of lists.range
	maxRegexInstructions = 2_000  // of a compiled regular expression; that of a DNS label has 130
	maxValueDepth        = 64
	// maxNodes is the maximum number of operations, constants and names in an expression after its macros are expanded.
	// The time for type checking is quadratic in this number.
	maxNodes = 1_000
	// maxTypeDepth is the maximum nesting depth of types in an expression. Type checking takes time cubic in this
	// depth.
	maxTypeDepth = 24

	// Schemas can be large, and the API server's published schemas are expanded where they are recursive. Values beyond
	// these limits are not checked.
	maxSchemaDepth = 32
	maxSchemaTypes = 20_000

	// Sizes that the cost estimate assumes if the schema sets no maximum. The actual cost is limited in any case.
	assumedLength = 256
	assumedItems  = 64
)
