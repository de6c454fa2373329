package blueprint

import (
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

// How much there may be in one Blueprint. The CustomResourceDefinition has the same numbers where it can say them.
const (
	MaxSpecBytes         = 512 << 10 // spec, as JSON
	MaxResources         = 100       // templates
	MaxAllowedNamespaces = 64        // patterns in spec.allowedNamespaces
	MaxConditions        = 16        // expressions in one includeWhen or readyWhen
	MaxExpressions       = 1_000     // expressions in total
	MaxExpressionBytes   = 64 << 10  // of all expressions together; one has at most expression.MaxLength
	MaxRegexes           = 20_000    // instructions of all their constant regular expressions
	MaxTemplateBytes     = 128 << 10 // one template, as JSON
	MaxTemplateDepth     = 64        // nested objects and lists
	MaxSchemaBytes       = 256 << 10 // spec.type.schema, as JSON
	MaxSchemaDepth       = 64        // nested objects and lists; a property of an object counts as two
	MaxSchemaRules       = 100       // x-kubernetes-validations and patterns in spec.type.schema
)

// How much may come of one instance.
const (
	// MaxObjectBytes is how large one rendered object may be, about, as JSON. etcd takes 1.5 MiB by default.
	MaxObjectBytes = 1 << 20
	// MaxInstanceBytes is how large all of an instance's rendered objects may be together.
	MaxInstanceBytes = 4 << 20
	// MaxInstanceCost is what all expressions may cost in one step of an instance: what Kubernetes spends on validating an
	// object, about 1 s. One expression may cost expression.PerCallLimit.
	MaxInstanceCost = celconfig.RuntimeCELCostBudget
)

// How long a message of problems is at most: a condition's may have 32,768 bytes.
const (
	maxProblemsTold = 10
	maxValuesTold   = 10
	maxQuoted       = 200
	maxReason       = 600
	maxPath         = 400
)
