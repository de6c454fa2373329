package explain

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/acceptance"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/identity"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

const checkRevisions = "check the permissions of the platform for controllerrevisions.apps in its namespace"

// blueprintAdvice and instanceAdvice contain the advice for condition reasons. The advice for other reasons depends on
// the object: see blueprintAction and instanceAction.
var (
	blueprintAdvice = map[string]string{
		"Invalid":                  "fix the Blueprint and apply it again. To check it without a cluster, run validate FILE",
		"TypeHasNoStatus":          "add the status subresource to the CustomResourceDefinition",
		"TypeClaimed":              acceptance.AnotherTypeAdvice,
		"BudgetExceeded":           "make the spec smaller, delete another Blueprint, or raise --max-blueprint-memory",
		"IdentityRequired":         identityRequired,
		"ServiceAccountNotAllowed": "name another ServiceAccount in spec.serviceAccountName",
		"NothingAccepted":          "fix the problem in the condition Accepted",
		"NotDefined":               "create the CustomResourceDefinition, or wait for the platform to create it",
		"RejectedByServer": "fix spec.type of the Blueprint, or the admission policy that rejects its " +
			"CustomResourceDefinition. The platform retries every 10 seconds",
		"TypeNotApplied":       "wait. If it persists, check the health of the API server and of its admission webhooks",
		"RevisionNotStored":    checkRevisions,
		"RevisionsUnavailable": checkRevisions,
		"NotValidated":         "remove the cause of the error. The platform retries",
		"Deleting": "find out what blocks the deletion: remove the cause of the error in the message, or run why for each " +
			"of the remaining instances",
		"Syncing":                  "wait a few seconds, and try again",
		"SyncingLong":              "check the load of the API server, and the number of instances",
		"Forbidden":                "grant the platform list and watch on the type",
		"InstancesLeftBehind":      "once the API server lists the instances, delete them or remove the finalizer from them",
		"RolloutStopped":           "fix or revert the Blueprint, or pause the named instances",
		"ProgressDeadlineExceeded": "run why for the named instances, and fix or revert the Blueprint",
		"RevisionNotReported":      "add status.revision to the schema of the CustomResourceDefinition",
		"Installing":               "wait a few seconds, and try again",
		"Terminating":              "wait until the CustomResourceDefinition is gone. It is then created again",
		"NamesNotAccepted":         "change the names in spec.type, or delete the type that uses them",
		"NotFound":                 "check that the API server serves the type",
		"Failing":                  "check the health of the API server",
	}
	instanceAdvice = map[string]string{
		"Invalid":                  "fix the spec of the instance, or the expression in the Blueprint",
		"Conflict":                 "delete or rename the other object, or change the name in the template",
		"Rejected":                 "fix the spec of the instance, or the template in the Blueprint",
		"IdentityRequired":         identityRequired,
		"ServiceAccountNotAllowed": "use another ServiceAccount, or create the instance in another namespace",
		"Drifting": "stop the named field manager from changing the field, or the client that deletes the object, or " +
			"remove the field from the template in the Blueprint",
		"ChildrenFailed": "the platform retries, unless the object is parked. If the error persists, look for its cause in " +
			"the log of the platform",
		"Waiting": "wait. If it takes too long, look at the objects that the message names",
		"MemoryExceeded": "make the instance smaller, for example the lists from which collections are made, or the " +
			"objects that its expressions read, or give the platform more memory",
		"WaitingForMemory": "wait. If it persists, give the platform more memory, or make the largest instances smaller",
		"Deleting":         "wait, or find out what blocks the deletion of the named objects",
		"Paused":           "remove the annotation " + instances.PausedAnnotation,
		"ChildrenLeftBehind": "once the API server supports it, list the objects with the label " +
			"platform.example.com/parent, and delete them",
	}
)

const (
	identityRequired = "set spec.serviceAccountName of the Blueprint, or ask the operator to set --default-service-account"
	addNamespace     = "add the namespace to --namespaces"
	grantPermissions = "grant the permissions"
)

// advised are the reasons whose messages have the form "problem; what to do".
var advised = map[string]bool{
	identity.ReasonIdentityRequired: true, identity.ReasonServiceAccountNotAllowed: true,
	identity.ReasonServiceAccountNotFound: true, identity.ReasonConsentMissing: true,
	identity.ReasonPermissionMissing: true, "TypeClaimed": true, "TypeNotOwned": true, "BudgetExceeded": true,
	"IncompatibleSchema": true, "Conflict": true,
}

// fromCondition returns a finding about a condition that indicates a problem. The action contains no text from the
// condition. Users who can write the status could otherwise recommend commands to the operator. The advice at the end
// of the message is replaced with the same text, which is built from the specs and names of the objects.
func fromCondition(o *Object, c *metav1.Condition) Finding {
	f := Finding{Object: o.Name(), Reason: c.Reason, Message: c.Message}
	advice := ""
	switch {
	case advised[c.Reason]:
		f.Message, advice, _ = cutAdvice(c.Message)
	case c.Reason == "CleanupForbidden":
		f.Message, advice = cutCleanupAdvice(c.Message)
	}
	if o.IsBlueprint() {
		f.Action = cmp.Or(blueprintAction(o, c), blueprintAdvice[c.Reason])
	} else {
		f.Action = cmp.Or(instanceAction(o, c, advice), instanceAdvice[c.Reason])
	}
	if f.Action == "" {
		f.Action = "look at the conditions: kubectl describe " + o.target()
	}
	return f
}

// blueprintAction returns what to do about a condition of a Blueprint if it depends on the Blueprint.
func blueprintAction(o *Object, c *metav1.Condition) string {
	b, err := blueprint.FromUnstructured(o.Unstructured)
	if err != nil {
		return ""
	}
	crd := blueprint.DefinitionName(b)
	if !plainName.MatchString(crd) {
		return ""
	}
	switch c.Reason {
	case "ConsentMissing":
		return acceptance.ConsentAdvice(crd, b.Name)
	case "TypeNotOwned":
		if strings.Contains(c.Message, "is reserved for Blueprint") {
			return acceptance.TakeoverAdvice(crd, b.Name)
		}
		return acceptance.ExistingTypeAdvice(crd, b.Name)
	case "IncompatibleSchema":
		return acceptance.IncompatibleAdvice(b.Generation)
	case "PermissionMissing":
		return platformRole(b, c.Message)
	case "Forbidden":
		return watchRole(b, c.Message)
	}
	return ""
}

// instanceAction returns what to do about a condition of an instance if it depends on the instance. advice is the
// advice in the condition. It selects one of several fixed texts.
func instanceAction(o *Object, c *metav1.Condition, advice string) string {
	switch c.Reason {
	case "ConsentMissing", "ServiceAccountNotFound", "PermissionMissing":
		return identityAction(o, c.Reason)
	case "Waiting":
		return waitingAction(o)
	case "Conflict":
		return conflictAction(c.Message)
	case "Forbidden":
		return missingRole(o, c.Message)
	case "CleanupForbidden":
		if advice != "" {
			return advice + ", " + instances.ReleaseAdvice(o.Resource, o.GetNamespace(), o.GetName(), o.GetFinalizers())
		}
	}
	return ""
}

// conflictActions contains the beginnings of the advice in messages about conflicts, and what to do. If a message is
// about several objects, the first entry counts: an object with a mark that names the instance must not be deleted.
var conflictActions = [][2]string{
	{instances.UpgradeAdvice, instances.UpgradeAdvice},
	{"if the parent has been restored", "if the instance has been restored from a backup, confirm this as described in " +
		"docs/security.md. Otherwise, change the name in the template"},
	{instances.MarkAdvice, instances.MarkAdvice},
	{instances.RetainedAdvice, instances.RetainedAdvice},
	{"set adopt: true", instances.AdoptionAdvice},
	{addNamespace, addNamespace},
}

// conflictAction returns what to do about a conflict if the message contains known advice.
func conflictAction(message string) string {
	for _, action := range conflictActions {
		if strings.Contains(message, "; "+action[0]) {
			return action[1]
		}
	}
	return ""
}

// identityAction returns what to do if the ServiceAccount of an instance cannot be used. If the ServiceAccount is
// unknown, the text has no command.
func identityAction(o *Object, reason string) string {
	name, _ := o.serviceAccount()
	isKnown := plainName.MatchString(name) && plainName.MatchString(o.blueprintName())
	id := identity.Identity{Namespace: o.GetNamespace(), Name: name}
	switch {
	case reason == "ServiceAccountNotFound" && isKnown:
		return identity.CreationAdvice(o.blueprintName())
	case reason == "ConsentMissing" && isKnown:
		return identity.ConsentAdvice(id, o.blueprintName())
	case reason == "PermissionMissing" && isKnown:
		return identity.ImpersonationAdvice(id)
	case reason == "PermissionMissing":
		return "permit the platform to get and to impersonate the ServiceAccount"
	}
	return "create the ServiceAccount if it does not exist, and add the Blueprint to its annotation " +
		identity.AllowedBlueprints
}

// cutCleanupAdvice splits the message of a forbidden cleanup into the problem and the beginning of the advice.
func cutCleanupAdvice(message string) (problem, advice string) {
	for _, advice := range []string{grantPermissions, addNamespace} {
		if problem, _, has := strings.Cut(message, "; "+advice); has {
			return problem, advice
		}
	}
	return message, ""
}

// more matches the end of a list that was cut off.
var more = regexp.MustCompile(`^and \d+ more\b`)

// cutAdvice splits a message into the problem and the advice. A line can have the form "problem; advice". If several
// lines do, the advice of the last one is returned. A last line about a missing permission of the platform consists
// only of advice.
func cutAdvice(message string) (problem, advice string, has bool) {
	lines := strings.Split(message, "\n")
	for i, line := range slices.Backward(lines) {
		switch problem, advice, has = strings.Cut(line, "; "); {
		case has && !more.MatchString(advice):
			lines[i] = problem
			return strings.Join(lines, "\n"), advice, true
		case i > 0 && i == len(lines)-1 && strings.HasPrefix(line, "grant "):
			return strings.Join(lines[:i], "\n"), line, true
		}
	}
	return message, "", false
}

// Patterns of names. They match nothing that a shell would interpret.
const (
	label      = `[a-z0-9](?:[-a-z0-9]*[a-z0-9])?`
	subdomain  = `[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?`
	resourceOf = `(` + label + `)(?:/(` + label + `))?` // a resource and its subresource
)

// forbidden matches the API server's message about a missing permission. Others, such as admission webhooks, can write
// the same message.
var forbidden = regexp.MustCompile(`User "(` + subdomain + `(?::` + subdomain + `)*)" cannot ([a-z]+) resource "` +
	resourceOf + `" in API group "((?:` + subdomain + `)?)" (?:in the namespace "(` + label + `)"|at the cluster scope)`)

// denial is a permission that the API server reports as missing.
type denial struct{ user, verb, resource, subresource, group, namespace string }

// denialsIn returns the missing permissions that a message reports.
func denialsIn(message string) (all []denial) {
	for _, m := range forbidden.FindAllStringSubmatch(message, -1) {
		all = append(all, denial{m[1], m[2], m[3], m[4], m[5], m[6]})
	}
	return all
}

// inRole returns a resource in the syntax of kubectl create role, such as deployments.apps/scale.
func inRole(resource, subresource, group string) string {
	text := schema.GroupResource{Group: group, Resource: resource}.String()
	if subresource != "" {
		text += "/" + subresource
	}
	return text
}

// inName returns a resource as a part of the name of a role.
func inName(resource string) string { return strings.NewReplacer("/", "-", ".", "-").Replace(resource) }

// childVerbs are the verbs that a ServiceAccount needs on the children of instances.
var childVerbs = []string{"get", "create", "patch", "delete"}

// missingRole returns the commands that grant the first permission that, according to a message, the instance's
// ServiceAccount lacks. It returns "" if there is none. Users who can write the status can forge the message. Commands
// are therefore suggested only for the instance's ServiceAccount, for kinds in the templates of its Blueprint, and for
// the namespaces of these templates. It is unknown which kinds are cluster-scoped, so no command grants permissions in
// all namespaces.
func missingRole(o *Object, message string) string {
	name, user := o.serviceAccount()
	if name == "" {
		return ""
	}
	b, err := blueprint.FromUnstructured(o.Owner.Blueprint)
	if err != nil {
		return ""
	}
	uses := usesOf(b)
	all := denialsIn(message)
	i := slices.IndexFunc(all, func(d denial) bool { return d.user == user && uses.includes(d, o.GetNamespace()) })
	switch {
	case i >= 0:
	case slices.ContainsFunc(all, func(d denial) bool { return d.user == user }):
		return "if the ServiceAccount should have the permission in the message, ask the operator to grant it"
	default:
		return ""
	}
	d := all[i]
	verbs := childVerbs
	if slices.Contains(readVerbs, d.verb) { // of objects that the instance refers to
		verbs = []string{d.verb}
	}
	flag, resource := " -n "+d.namespace, schema.GroupResource{Group: d.group, Resource: d.resource}.String()
	return fmt.Sprintf("if the ServiceAccount should have the permission, grant it with a Role, for example: "+
		"kubectl create role %[1]s-%[2]s%[3]s --verb=%[4]s --resource=%[5]s && "+
		"kubectl create rolebinding %[1]s-%[2]s%[3]s --role=%[1]s-%[2]s --serviceaccount=%[6]s:%[1]s",
		name, inName(resource), flag, strings.Join(verbs, ","), resource, o.GetNamespace())
}

// serviceAccount returns the name and the user name of the ServiceAccount that an instance's Blueprint declares. Both
// are empty if the ServiceAccount is unknown: for cluster-scoped instances, and if the platform's default is used.
func (o *Object) serviceAccount() (name, user string) {
	if o.Owner == nil || o.Owner.Blueprint == nil || o.GetNamespace() == "" {
		return "", ""
	}
	name, _, _ = unstructured.NestedString(o.Owner.Blueprint.Object, "spec", "serviceAccountName")
	if name == "" {
		return "", ""
	}
	return name, serviceaccount.MakeUsername(o.GetNamespace(), name)
}

// blueprintName returns the name of the instance's Blueprint, or "" if it is unknown.
func (o *Object) blueprintName() string {
	if o.Owner == nil || o.Owner.Blueprint == nil {
		return ""
	}
	return o.Owner.Blueprint.GetName()
}

// watchRole returns the commands that allow the platform to watch a Blueprint's type, or "" if the message is about
// something else.
func watchRole(b *blueprint.Blueprint, message string) string {
	for _, d := range denialsIn(message) {
		resource := inRole(d.resource, d.subresource, d.group)
		switch {
		case resource != blueprint.DefinitionName(b):
		case d.namespace != "":
			return "ask the operator to grant the platform list and watch on " + resource + " with a Role and a RoleBinding " +
				"in namespace " + d.namespace
		default:
			return askOperator(platformRoleFor(resource, "list,watch"))
		}
	}
	return ""
}

// platformLacks matches the lines of the platform's message about its own missing permissions.
var platformLacks = regexp.MustCompile(`(?m): the platform has no permission to ([a-z]+(?:, [a-z]+)*) ` + resourceOf +
	`(?:\.(` + subdomain + `))?( in namespace \S+)?$`)

// platformRole returns the commands that grant the platform its missing permissions on the type of a Blueprint and on
// the kinds in its templates. If the message names other permissions, platformRole returns a text without commands.
func platformRole(b *blueprint.Blueprint, message string) string {
	uses := usesOf(b)
	var commands []string
	for _, m := range platformLacks.FindAllStringSubmatch(message, -1) {
		if m[5] != "" {
			return "grant the missing permissions with a Role and a RoleBinding in the namespace"
		}
		resource := schema.GroupResource{Group: m[4], Resource: m[2]}
		isOwnType := resource.String() == blueprint.DefinitionName(b) && (m[3] == "" || m[3] == "status")
		if !isOwnType && (m[3] != "" || !uses.created[resource] && !uses.read[resource]) {
			commands = nil
			break
		}
		commands = append(commands, platformRoleFor(inRole(m[2], m[3], m[4]), strings.ReplaceAll(m[1], ", ", ",")))
	}
	if len(commands) == 0 {
		return fmt.Sprintf("grant the missing permissions with a ClusterRole that has the label %s: %q",
			acceptance.AggregationLabel, "true")
	}
	return askOperator(commands...)
}

func askOperator(commands ...string) string {
	return "ask the operator to grant the permissions: " + strings.Join(commands, " && ")
}

// platformRoleFor returns the commands that create a ClusterRole for the platform.
func platformRoleFor(resource, verbs string) string {
	return fmt.Sprintf("kubectl create clusterrole %[1]s --verb=%[2]s --resource=%[3]s && "+
		"kubectl label clusterrole %[1]s %[4]s=true", "blueprint-"+inName(resource), verbs, resource,
		acceptance.AggregationLabel)
}
