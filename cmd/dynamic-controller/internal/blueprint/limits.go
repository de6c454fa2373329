package blueprint

import (
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

// Limits for a Blueprint. Where possible, the Blueprint CustomResourceDefinition sets the same limits.
const (
	MaxSpecBytes       = 512 << 10 // size of the spec as JSON
	MaxResources       = 100       // number of resources
	MaxConditions      = 16        // number of expressions in one includeWhen or readyWhen
	MaxIterators       = 10        // number of lists in one forEach
	MaxExpressions     = 1_000     // number of expressions
	MaxExpressionBytes = 64 << 10  // total size of all expressions; see also expression.MaxLength
	MaxTemplateBytes   = 128 << 10 // size of one template as JSON
	MaxTemplateDepth   = 64        // depth of nested objects and lists
	MaxSchemaBytes     = 256 << 10 // size of spec.type.schema as JSON
	MaxSchemaDepth     = 64        // depth of nested objects and lists; a property adds two levels
	MaxSchemaRules     = 100       // number of x-kubernetes-validations and patterns in spec.type.schema
)

// Limits for an instance.
const (
	// MaxObjectBytes is the approximate maximum size of a rendered object as JSON. By default, etcd accepts 1.5 MiB.
	MaxObjectBytes = 1 << 20
	// MaxInstanceBytes is the maximum total size of all rendered objects of an instance.
	MaxInstanceBytes = 4 << 20
	// MaxStatusBytes is the maximum size of spec.type.status. It is also the maximum total size of the values that
	// spec.type.status and spec.type.conditions yield for one instance. Instances larger than twice this size are cached
	// without their content.
	MaxStatusBytes = 32 << 10
	// MaxCollection is the maximum number of objects in a collection. MaxCollected is the maximum number of objects in all
	// collections of an instance together.
	MaxCollection = 1_000
	MaxCollected  = 5_000
	// MaxListMemory is the approximate maximum memory of a list in a forEach, in bytes.
	MaxListMemory = 8 << 20
	// MaxChildBytes is the maximum total size of the API server responses from which the children of an instance are read.
	// Most children are read from the cache and do not count.
	MaxChildBytes = 16 << 20
	// MaxReferenceBytes is the maximum total size of the API server responses from which the references of an instance are
	// read.
	MaxReferenceBytes = 4 << 20
	// MaxReferenced is the maximum number of objects that can match the selector of a reference.
	MaxReferenced = 500
	// MaxInstanceCost is the maximum cost of all expressions in one step of an instance. It equals Kubernetes' cost budget
	// for validating one object, which corresponds to about 1 s of evaluation. The limit for a single expression is
	// expression.PerCallLimit.
	MaxInstanceCost = celconfig.RuntimeCELCostBudget
)

// Limits for messages. The message of a condition can have at most 32,768 bytes.
const (
	maxProblems     = 10
	maxValues       = 10
	maxUnreadyItems = 3 // number of unready objects listed for a collection
	maxQuoted       = 200
	maxReason       = 600
	maxPath         = 400
)
