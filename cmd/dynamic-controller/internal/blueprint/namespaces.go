package blueprint

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint/expression"
)

// ownNamespace is the expression for the namespace in which a child is by default.
const ownNamespace = "self.metadata.namespace"

// checkAllowedNamespaces checks spec.allowedNamespaces. The CustomResourceDefinition of Blueprints has the same limits.
func (c *Compiled) checkAllowedNamespaces(patterns []string, problems *collector) {
	const path = "spec.allowedNamespaces"
	if len(patterns) > MaxAllowedNamespaces {
		problems.add(path, "", "has more than %d entries", MaxAllowedNamespaces)
		return
	}
	for i, pattern := range patterns {
		at := fmt.Sprintf("%s[%d]", path, i)
		if err := CheckNamespacePattern(pattern); err != nil {
			problems.add(at, "", "%q: %v", cut(pattern, maxQuoted), err)
		} else if c.policy.protects(pattern) && !strings.Contains(pattern, "*") {
			problems.add(at, "", "%s", protected(pattern))
		}
	}
	c.allowedNamespaces = patterns
}

// checkNamespaceExpression reports a namespace that is computed from the instance, if the Blueprint has no list of
// allowed namespaces. Otherwise, users of instances could choose any namespace.
func (c *Compiled) checkNamespaceExpression(namespace string, r *resource, problems *collector) {
	parts, err := expression.Scan(namespace)
	if err != nil || !slices.ContainsFunc(parts, func(p expression.Part) bool { return p.Expression }) {
		return
	}
	text := ""
	if len(parts) == 1 {
		text = strings.TrimSpace(parts[0].Text)
	}
	if text == ownNamespace {
		return
	}
	r.computesNamespace = true
	if len(c.allowedNamespaces) == 0 {
		problems.add(r.path+".metadata.namespace", text, "a namespace can be computed only if spec.allowedNamespaces lists the "+
			"allowed results, as names or patterns such as team-*")
	}
}

// checkComputedNamespace checks the namespace that an expression yielded. The instance's own namespace is always
// allowed, because it is the default for children.
func (c *Compiled) checkComputedNamespace(r *resource, namespace, own string) *Problem {
	if !r.computesNamespace || namespace == own && own != "" {
		return nil
	}
	at := r.path + ".metadata.namespace"
	if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
		return &Problem{Path: at, Reason: fmt.Sprintf("%q cannot be the name of a namespace: %s", cut(namespace, maxQuoted), problems[0])}
	}
	if !matchesAny(namespace, c.allowedNamespaces) {
		return &Problem{Path: at, Reason: fmt.Sprintf("namespace %q does not match spec.allowedNamespaces of the Blueprint", namespace)}
	}
	return nil
}
