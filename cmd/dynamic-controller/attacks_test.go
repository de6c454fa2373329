package main

import (
	rbacv1 "k8s.io/api/rbac/v1"
)

// showing returns the change that adds status fields to an attacking Blueprint.
func showing(fields string) []change {
	return []change{{"    schema:\n", "    status: {" + fields + "}\n    schema:\n"}}
}

// combinedAttacks returns attacks that combine collections, references and status fields.
func combinedAttacks() map[string]attack {
	secrets := []rbacv1.PolicyRule{rule(writeChildren, "", "configmaps,secrets")}
	return map[string]attack{
		"author status: data from an existing Secret is shown": {
			kind: "Betrayer", template: configMap + namedChild + "}" + existing("Secret", "name: vault", "existing.data.text"),
			edit: showing(`a: "${existing.data.text}", b: "${copy.data.text}"`),
			rejected: []string{"Invalid", "spec.type.status.a: ${existing.data.text}: must not read a Secret's data",
				"spec.type.status.b: ${copy.data.text}: must not read a Secret's data"},
		},
		"author status: data from listed Secrets and from a collection of Secrets is shown": {
			kind: "Lecturer", template: `{apiVersion: v1, kind: Secret, metadata: {name: "${name}"}}
      forEach: [{name: "${['vault']}"}]` + adopt + existing("Secret", "selector: {}", "string(size(existing))"),
			edit:     showing(`a: "${child.map(c, c.data.text)}", b: "${existing.map(e, e.data)}"`),
			rejected: []string{"Invalid", "spec.type.status.a: ", "spec.type.status.b: ", "must not read a Secret's data"},
		},
		"author status: an existing object is shown after the permission was revoked": {
			kind: "Follower", may: []rbacv1.PolicyRule{rule(writeChildren, "", "configmaps", "follower")},
			template: configMap + namedChild + `}
    - id: existing
      externalRef: {apiVersion: v1, kind: ConfigMap, metadata: {name: follower-leak}}`,
			edit: showing(`text: "${existing.data.text}"`), then: (*scene).revokeReference,
			want: []string{"Forbidden", "existing: as ServiceAccount NAMESPACE/follower: ",
				`configmaps "follower-leak" is forbidden`},
			check: func(s *scene) { s.tenant.wait("GROUP/v1", s.kind, s.name, has("public", "status", "text")) },
		},
		"author error message: includeWhen of a collection reads a Secret": {
			kind: "Chooser", may: secrets, template: configMap + `metadata: {name: "${self.metadata.name}-${item}"}}
      forEach: [{item: "${['a']}"}]
      includeWhen: ["int(string(base64.decode(existing.data.text))) > 0"]
    - id: existing
      externalRef: {apiVersion: v1, kind: Secret, metadata: {name: vault}}`,
			want:   []string{"Invalid", "the reason is hidden, because the expression reads a Secret"},
			absent: []string{"v1 ConfigMap chooser-a"},
		},
		"author error message: a list contains data from an existing Secret": {
			kind: "Speller", may: secrets, template: configMap + `metadata: {name: "${letter}"}}
      forEach: [{letter: "${[existing.data.text]}"}]
    - id: existing
      externalRef: {apiVersion: v1, kind: Secret, metadata: {name: vault}}`,
			rejected: []string{"Invalid", "spec.resources[0].template.metadata.name: ${letter}: must not be derived from a " +
				"Secret's data"},
		},
		"tenant claim: an item has the name of someone else's object": {
			kind: "Grabber", template: `{apiVersion: v1, kind: Service, metadata: {name: "${item}"},
        spec: {ports: [{port: 81}]}}
      forEach: [{item: "${[self.spec.a, self.spec.b]}"}]`,
			may: []rbacv1.PolicyRule{rule(writeChildren, "", "services")}, spec: "{a: theirs, b: grabber-own}",
			want:  []string{"Conflict", "theirs", "this controller did not create it, and adoption is not enabled"},
			check: func(s *scene) { s.checkService(); s.dropItem(); s.checkService() },
		},
		"tenant reference: a label matches an object in another namespace": {
			kind: "Fisher", may: []rbacv1.PolicyRule{rule(writeChildren+",list", "", "configmaps")}, spec: "{a: notes}",
			template: configMap + namedChild + "}" + existing("ConfigMap",
				`selector: {matchLabels: {kubernetes.io/metadata.name: "${self.spec.a}"}}`, "string(size(existing))"),
			then:  (*scene).mayReadElsewhere,
			check: func(s *scene) { s.wait("v1", "ConfigMap", "fisher-copy", has("0", "data", "text")) },
		},
	}
}
