package expression

import (
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

// Limits of one expression. They are far above what people write, and low enough that thousands of hostile ones harm
// nobody.
const (
	// PerCallLimit is what running an expression once may cost: Kubernetes' own limit of one call, about 0.1 s.
	PerCallLimit = celconfig.PerCallLimit
	// MaxLength is how long an expression may be, in bytes.
	MaxLength = 4096
	// MaxStringBytes is how long a string may become that a function makes of others.
	MaxStringBytes = 1 << 20
	// MaxListItems is how long a list may be that lists.range makes or whose items are all compared with each other.
	MaxListItems = 10_000
	// MaxRegexInstructions is how large a regular expression may be when it is compiled. That of a DNS label has 130.
	MaxRegexInstructions = 2_000
	// maxRegexSteps is how many steps matching one may take: its instructions times what it is matched against.
	maxRegexSteps = 20_000_000
	// maxDigits is how long a quantity may be.
	maxDigits = 256
	// maxPrecision is how many digits "%.3f" may ask for.
	maxPrecision = 100
	// maxDepth is how deep operations may be in each other, maxGrowth how deep those of them whose types hold others, and
	// maxComprehensions how many comprehensions an expression may have. Without them working out the types of 2,400 bytes
	// takes 17 s and 5 GiB.
	maxDepth          = 64
	maxGrowth         = 24
	maxComprehensions = 10
	// maxNesting is how deep a value may be.
	maxNesting = 64
)

// What a schema that does not say how long a string, list or map may be is taken to say, where the cost of an expression
// is estimated: what people have, for what it really costs is counted when it runs.
const (
	usualLength = 256
	usualItems  = 64
)
