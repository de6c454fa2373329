package blueprint

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The flags with which an operator relaxes a ChildPolicy. Problems include them.
const (
	AllowChildKindsFlag      = "allow-child-kinds"
	AllowChildNamespacesFlag = "allow-child-namespaces"
)

// ChildPolicy limits which objects templates can create. The platform can write many objects that authors of Blueprints
// and users of instances cannot, and some of them grant more permissions than their author has.
//
// The zero value allows no restricted kind and protects the kube-* namespaces.
type ChildPolicy struct {
	// OwnNamespace is the platform's namespace. It is protected like the kube-* namespaces.
	OwnNamespace string
	// Kinds lists the restricted kinds that templates can create: see [CheckRestrictedKind].
	Kinds []string
	// Namespaces lists the protected namespaces in which templates can create objects. A * matches any characters.
	Namespaces []string
}

// restrictedGroups lists the API groups that templates cannot use, and what their objects do. They, and the restricted
// kinds, are those that Kubernetes lists as privilege escalation risks in its good practices for RBAC.
var restrictedGroups = map[string]string{
	rbacv1.GroupName:               "grants permissions",
	"admissionregistration.k8s.io": "changes or refuses the requests of all users",
	"apiregistration.k8s.io":       "redirects requests of all users to another server",
	apiextensionsv1.GroupName:      "defines a type, which a Blueprint does with spec.type",
	"certificates.k8s.io":          "requests an identity, or changes which identities are trusted",
	GroupVersion.Group:             "makes the platform create anything that it can create",
}

// restrictedKinds lists further kinds that templates cannot use.
var restrictedKinds = map[schema.GroupKind]string{
	{Kind: "PersistentVolume"}: "can give access to the files of a node",
}

// Some objects of these kinds are restricted. The operator allows them by kind and variant.
const (
	secretKind    = "Secret"
	namespaceKind = "Namespace"
	// podSecurity is the prefix of the labels by which a namespace opts out of Pod security.
	podSecurity = "pod-security.kubernetes.io"
)

// restrictedSecrets lists the types of Secrets that are credentials of the cluster: the API server or a controller fills
// them with a token, or accepts them as one.
var restrictedSecrets = []string{string(corev1.SecretTypeServiceAccountToken), string(corev1.SecretTypeBootstrapToken)}

// strictPodSecurity lists the values of Pod security labels that never weaken it.
var strictPodSecurity = []string{"restricted", "latest"}

// CheckRestrictedKind returns an error if the entry is not valid in ChildPolicy.Kinds. An entry is KIND.GROUP, or KIND
// for Kubernetes' core group, of a restricted kind. KIND/VARIANT is a part of a kind: Secret/TYPE for Secrets of a
// type, and Namespace/pod-security.kubernetes.io for Namespaces with labels that weaken Pod security.
func CheckRestrictedKind(entry string) error {
	if slices.Contains(restrictedVariants(), entry) {
		return nil
	}
	gk := schema.ParseGroupKind(entry)
	if reasonRestricted(gk) != "" && validKind.MatchString(gk.Kind) {
		return nil
	}
	groups := slices.Sorted(maps.Keys(restrictedGroups))
	return fmt.Errorf("it must be %s, or KIND.GROUP with one of the groups %s",
		strings.Join(append(restrictedVariants(), "PersistentVolume"), ", "), strings.Join(groups, ", "))
}

var validKind = regexp.MustCompile(`^[A-Z][a-zA-Z0-9]*$`)

func restrictedVariants() (all []string) {
	for _, t := range restrictedSecrets {
		all = append(all, secretKind+"/"+t)
	}
	return append(all, namespaceKind+"/"+podSecurity)
}

func reasonRestricted(gk schema.GroupKind) string {
	if reason, is := restrictedGroups[gk.Group]; is {
		return reason
	}
	return restrictedKinds[gk]
}

var errNamespacePattern = errors.New("it must be the name of a namespace, in which * stands for any characters")

var validNamespacePattern = regexp.MustCompile(`^[a-z0-9*]([-a-z0-9*]{0,61}[a-z0-9*])?$`)

// CheckNamespacePattern returns an error for an invalid pattern in ChildPolicy.Namespaces or spec.allowedNamespaces.
func CheckNamespacePattern(pattern string) error {
	if !validNamespacePattern.MatchString(pattern) {
		return errNamespacePattern
	}
	return nil
}

// matchesAny reports whether a namespace matches one of the patterns, which have been checked.
func matchesAny(namespace string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		matches, err := path.Match(pattern, namespace)
		return err == nil && matches
	})
}

// protects reports whether templates must not create objects in the namespace.
func (p ChildPolicy) protects(namespace string) bool {
	own := p.OwnNamespace != "" && namespace == p.OwnNamespace
	return (own || strings.HasPrefix(namespace, "kube-")) && !matchesAny(namespace, p.Namespaces)
}

// needsFlag returns the end of a problem: the flag with which an operator can allow the refused value.
func needsFlag(flag, value string) string {
	return fmt.Sprintf("it is allowed only if the platform runs with --%s=%s", flag, value)
}

// checkKind reports a kind that is restricted as a whole.
func (p ChildPolicy) checkKind(r *resource, problems *collector) {
	gk := r.gvk.GroupKind()
	if reason := reasonRestricted(gk); reason != "" && !slices.Contains(p.Kinds, gk.String()) {
		problems.add(r.path+".kind", "", "a %s %s: %s", r.gvk.Kind, reason, needsFlag(AllowChildKindsFlag, gk.String()))
	}
}

// checkRendered returns the first reason why a template must not create the object, or nil.
func (p ChildPolicy) checkRendered(r *resource, object map[string]any) *Problem {
	metadata, _ := object["metadata"].(map[string]any)
	for _, field := range servers {
		if _, has := metadata[field]; has {
			return &Problem{Path: r.path + ".metadata." + field, Reason: notInTemplates}
		}
	}
	return p.checkValues(r, object)
}

// checkValues checks the values in an object, but not which fields it has. The object is a rendered one, or the part of
// a template that is known without an instance.
func (p ChildPolicy) checkValues(r *resource, object map[string]any) *Problem {
	metadata, _ := object["metadata"].(map[string]any)
	if namespace, _ := metadata["namespace"].(string); p.protects(namespace) {
		return &Problem{Path: r.path + ".metadata.namespace", Reason: protected(namespace)}
	}
	switch r.gvk.GroupKind() {
	case schema.GroupKind{Kind: secretKind}:
		return p.checkSecret(r, object)
	case schema.GroupKind{Kind: namespaceKind}:
		return p.checkNamespaceObject(r, object, metadata)
	}
	return nil
}

func protected(namespace string) string {
	return fmt.Sprintf("namespace %q is protected: %s", namespace, needsFlag(AllowChildNamespacesFlag, namespace))
}

func (p ChildPolicy) checkSecret(r *resource, object map[string]any) *Problem {
	t, _ := object["type"].(string)
	entry := secretKind + "/" + t
	if !slices.Contains(restrictedSecrets, t) || slices.Contains(p.Kinds, entry) {
		return nil
	}
	return &Problem{Path: r.path + ".type", Reason: fmt.Sprintf("a Secret of type %s is a credential of the cluster: %s", t, needsFlag(AllowChildKindsFlag, entry))}
}

// checkNamespaceObject rejects a Namespace that is protected or weakens Pod security. A Namespace has finalizers in its
// spec, too.
func (p ChildPolicy) checkNamespaceObject(r *resource, object, metadata map[string]any) *Problem {
	if name, _ := metadata["name"].(string); p.protects(name) {
		return &Problem{Path: r.path + ".metadata.name", Reason: protected(name)}
	}
	if _, has, _ := unstructured.NestedFieldNoCopy(object, "spec", "finalizers"); has {
		return &Problem{Path: r.path + ".spec.finalizers", Reason: notInTemplates}
	}
	labels, _ := metadata["labels"].(map[string]any)
	entry := namespaceKind + "/" + podSecurity
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		value, _ := labels[key].(string)
		if strings.HasPrefix(key, podSecurity+"/") && !slices.Contains(strictPodSecurity, value) && !slices.Contains(p.Kinds, entry) {
			if r.sensitive {
				return &Problem{Path: r.path + ".metadata.labels", Reason: "a label can weaken Pod security: " + needsFlag(AllowChildKindsFlag, entry)}
			}
			return &Problem{Path: child(r.path+".metadata.labels", key),
				Reason: fmt.Sprintf("the value %q can weaken Pod security: %s", cut(value, maxQuoted), needsFlag(AllowChildKindsFlag, entry))}
		}
	}
	return nil
}

// known returns the part of a template that has no expressions, which is the same for every instance.
func known(n node) any {
	switch n := n.(type) {
	case literal:
		return n.value
	case object:
		fields := map[string]any{}
		for i, key := range n.keys {
			if value := known(n.values[i]); value != nil {
				fields[key] = value
			}
		}
		return fields
	}
	return nil
}
