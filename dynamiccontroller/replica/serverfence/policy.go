package serverfence

import (
	"fmt"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/leasename"
)

// The extra fields of the user that a write carries.
const (
	// LeaseExtra contains the namespace and the name of the Lease that the write depends on, with a slash in between.
	LeaseExtra = "fence.dynamic-controller.github.io/lease"
	// HolderExtra contains the holder identity of the replica that sent the write.
	HolderExtra = "fence.dynamic-controller.github.io/holder"
)

// Label is the label of the Leases that terms depend on. Package replica sets it to a value that depends on the name of
// the Lease, and is the same for the Leases of all shards.
const Label = "fence.dynamic-controller.github.io/lease"

// Denied is the beginning of the message with which the policy rejects a write.
const Denied = "the sender does not hold the Lease "

// Options describes whose writes the policy fences. All fields except Shards and Resources are required.
type Options struct {
	// Name is the name of the policy, and of its binding.
	Name string
	// LeaseNamespace and LeaseName are those of replica.Options.
	LeaseNamespace, LeaseName string
	// Username is the user of the program, such as system:serviceaccount:my-namespace:my-platform. The policy applies to
	// its writes, and to those of other users that the program impersonates. The user must not be that of another program,
	// or of replicas with another Lease, because their writes would be rejected.
	Username string
	// Shards is the number of shards of the replicas. If it changes, use the larger number. Zero and one mean that there
	// is a single leader.
	Shards int
	// Resources are those that the program writes. They include their subresources. A group or a resource can be "*". The
	// policy then does not apply to the writes of other resources, except ConfigMaps, which [Probe] needs. Defaults to all
	// resources with at most 16 shards, and is required with more, because the policy delays each write to which it
	// applies, of each user, by about 0.03 ms for each shard.
	Resources []schema.GroupResource
}

// maxShards is the largest number of shards with which the policy applies to all resources by default.
const maxShards = 16

const shardDelay = 30 * time.Microsecond // measured by BenchmarkServerFence in test/bench

func (o Options) validate() error {
	for name, value := range map[string]string{
		"Name": o.Name, "LeaseNamespace": o.LeaseNamespace, "LeaseName": o.LeaseName, "Username": o.Username,
	} {
		if value == "" {
			return fmt.Errorf("serverfence: Options.%s is empty", name)
		}
	}
	for i, r := range o.Resources {
		if r.Resource == "" || strings.Contains(r.Resource, "/") {
			return fmt.Errorf("serverfence: Options.Resources[%d]: the resource %q is invalid, want a plural name or \"*\"",
				i, r.Resource)
		}
	}
	if o.Shards > maxShards && len(o.Resources) == 0 {
		return fmt.Errorf("serverfence: Options.Shards is %d: with more than %d, the policy would delay each write of each "+
			"user by about %s; list the Options.Resources that the program writes", o.Shards, maxShards,
			time.Duration(o.Shards)*shardDelay)
	}
	return nil
}

// The rules of the policy. The election must not depend on the policy, and a replica reports Events and asks for
// reviews when it does not lead. Requests through a proxy subresource are not writes of the API server.
var (
	writes = []admissionregistrationv1.OperationType{
		admissionregistrationv1.Create, admissionregistrationv1.Update, admissionregistrationv1.Delete,
	}
	streams = rule("", []admissionregistrationv1.OperationType{admissionregistrationv1.Connect},
		"pods/exec", "pods/attach", "pods/portforward")
	exempt = []admissionregistrationv1.NamedRuleWithOperations{
		rule("coordination.k8s.io", writes, "leases"),
		rule("", writes, "events"),
		rule("events.k8s.io", writes, "events"),
		rule("authentication.k8s.io", writes, "*/*"),
		rule("authorization.k8s.io", writes, "*/*"),
	}
)

func rule(
	group string, operations []admissionregistrationv1.OperationType, resources ...string,
) admissionregistrationv1.NamedRuleWithOperations {
	return admissionregistrationv1.NamedRuleWithOperations{
		RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: operations,
			Rule: admissionregistrationv1.Rule{
				APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: resources,
			},
		},
	}
}

// rules returns the rules of the writes to which the policy applies.
func (o Options) rules() []admissionregistrationv1.NamedRuleWithOperations {
	if len(o.Resources) == 0 {
		return []admissionregistrationv1.NamedRuleWithOperations{rule("*", writes, "*/*"), streams}
	}
	probed := schema.GroupResource{Resource: "configmaps"}
	var rules []admissionregistrationv1.NamedRuleWithOperations
	for _, r := range append(slices.Clone(o.Resources), probed) {
		resources := []string{r.Resource, r.Resource + "/*"}
		if r.Resource == "*" { // the API server rejects others next to "*/*"
			resources = resources[1:]
		}
		rules = append(rules, rule(r.Group, writes, resources...))
		if (r.Group == "" || r.Group == "*") && (r.Resource == "pods" || r.Resource == "*") {
			rules = append(rules, streams)
		}
	}
	return rules
}

// Objects returns the policy and its binding. It returns an error that names an invalid option. The MatchConstraints of
// the policy can be changed.
func Objects(o Options) (
	*admissionregistrationv1.ValidatingAdmissionPolicy, *admissionregistrationv1.ValidatingAdmissionPolicyBinding, error,
) {
	if err := o.validate(); err != nil {
		return nil, nil, err
	}
	return policy(o), binding(o), nil
}

// binding selects the Leases by label. If it had their names, the API server would send a request for a missing Lease
// with each write of each user, and reject the write if that request fails.
func binding(o Options) *admissionregistrationv1.ValidatingAdmissionPolicyBinding {
	return &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		TypeMeta: metav1.TypeMeta{
			APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: "ValidatingAdmissionPolicyBinding",
		},
		ObjectMeta: metav1.ObjectMeta{Name: o.Name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: o.Name,
			ParamRef: &admissionregistrationv1.ParamRef{
				Namespace: o.LeaseNamespace,
				Selector:  &metav1.LabelSelector{MatchLabels: map[string]string{Label: leasename.LabelValue(o.LeaseName)}},
				// With Deny, a missing Lease would reject the writes of all users.
				ParameterNotFoundAction: ptr.To(admissionregistrationv1.AllowAction),
			},
			ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
}

func policy(o Options) *admissionregistrationv1.ValidatingAdmissionPolicy {
	name := o.LeaseNamespace + "/" + o.LeaseName
	lease, holder := extraField(LeaseExtra), extraField(HolderExtra)
	// The API server evaluates the condition for each Lease, and the validation if it is true: for the Lease that the
	// write names, and for writes of the user itself that name no Lease of the program, which are always rejected.
	const named = " == params.metadata.namespace + '/' + params.metadata.name"
	condition := fmt.Sprintf("%s || request.userInfo.username == %q && !%s", lease+named, o.Username, o.ours(lease))
	// In the Lease of a fleet, the number of shards comes before the identity: shards=8/identity.
	const holds = "has(params.spec.holderIdentity) && variables.holder != '' && " +
		"(params.spec.holderIdentity == variables.holder || params.spec.holderIdentity.startsWith('shards=') && " +
		"params.spec.holderIdentity.endsWith('/' + variables.holder))"
	spec := admissionregistrationv1.ValidatingAdmissionPolicySpec{
		FailurePolicy: ptr.To(admissionregistrationv1.Fail),
		ParamKind:     &admissionregistrationv1.ParamKind{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		MatchConstraints: &admissionregistrationv1.MatchResources{
			ResourceRules: o.rules(), ExcludeResourceRules: exempt,
		},
		MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "depends-on-the-lease", Expression: condition}},
		Variables: []admissionregistrationv1.Variable{
			{Name: "lease", Expression: lease}, {Name: "holder", Expression: holder},
		},
		Validations: []admissionregistrationv1.Validation{{
			Expression: "variables.lease" + named + " && " + holds,
			Message:    Denied + name,
			MessageExpression: fmt.Sprintf("%q + (variables.lease == '' ? %q : variables.lease)",
				Denied, name+": it names none"),
			Reason: ptr.To(metav1.StatusReasonForbidden),
		}},
	}
	return &admissionregistrationv1.ValidatingAdmissionPolicy{
		TypeMeta: metav1.TypeMeta{
			APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: "ValidatingAdmissionPolicy",
		},
		ObjectMeta: metav1.ObjectMeta{Name: o.Name},
		Spec:       spec,
	}
}

// ours returns an expression that is true if the given one is the name of a Lease of the program.
func (o Options) ours(lease string) string {
	name := o.LeaseNamespace + "/" + o.LeaseName
	if o.Shards <= 1 {
		return fmt.Sprintf("(%s == %q)", lease, name)
	}
	return fmt.Sprintf("(%s == %q || %s.startsWith(%q))", lease, name, lease, leasename.ShardPrefix(name))
}

// extraField returns an expression for an extra field of the user. It is an empty string if the field is missing.
func extraField(name string) string {
	return fmt.Sprintf("(has(request.userInfo.extra) && %q in request.userInfo.extra && "+
		"request.userInfo.extra[%q].size() == 1 ? request.userInfo.extra[%q][0] : '')", name, name, name)
}
