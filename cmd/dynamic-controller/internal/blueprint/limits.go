package blueprint

import (
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

// Limits of a Blueprint. The CustomResourceDefinition for Blueprints contains the same numbers, where possible.
const (
	MaxSpecBytes         = 512 << 10 // spec, as JSON
	MaxResources         = 100       // templates
	MaxAllowedNamespaces = 64        // patterns in spec.allowedNamespaces
	MaxConditions        = 16        // expressions in one includeWhen or readyWhen
	MaxExpressions       = 1_000     // expressions in total
	MaxExpressionBytes   = 64 << 10  // of all expressions together; one has at most expression.MaxLength
	MaxTemplateBytes     = 128 << 10 // one template, as JSON
	MaxTemplateDepth     = 64        // nested objects and lists
	MaxSchemaBytes       = 256 << 10 // spec.type.schema, as JSON
	MaxSchemaDepth       = 64        // nested objects and lists; a property of an object counts as two
	MaxSchemaRules       = 100       // x-kubernetes-validations and patterns in spec.type.schema
)

// Limits of an instance.
const (
	// MaxObjectBytes is the maximum size of a rendered object as JSON, approximately. etcd accepts 1.5 MiB by default.
	MaxObjectBytes = 1 << 20
	// MaxInstanceBytes is the maximum size of all rendered objects of an instance together.
	MaxInstanceBytes = 4 << 20
	// MaxInstanceCost is the maximum cost of all expressions in one step of an instance. It is Kubernetes' budget for
	// validating an object, which takes about 1 s. The limit for a single expression is expression.PerCallLimit.
	MaxInstanceCost = celconfig.RuntimeCELCostBudget
)

// Limits of messages. The message of a condition can have 32,768 bytes.
const (
	maxProblemsTold = 10
	maxValuesTold   = 10
	maxQuoted       = 200
	maxReason       = 600
	maxPath         = 400
)
