package statusclient

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/status"
)

// matching returns the served types that a name selects. If the name selects no type, matching returns the types of
// which it is the kind, and byKind is true. It returns an error if no type matches.
func matching(types []status.Type, name string) (matched []*status.Type, byKind bool, err error) {
	var ofKind []*status.Type
	for i := range types {
		switch t := &types[i]; {
		case status.MatchesType(name, t.Resource):
			matched = append(matched, t)
		case t.Kind != "" && strings.EqualFold(name, t.Kind):
			ofKind = append(ofKind, t)
		}
	}
	switch {
	case len(matched) > 0:
		return matched, false, nil
	case len(ofKind) > 0:
		return ofKind, true, nil
	}
	return nil, false, fmt.Errorf("%q: no served type has this name: run dynamic-controller types", name)
}

// Resolve returns the name of a type in the form that a replica accepts. name can also be a kind.
func Resolve(r *status.Replica, name string) (string, error) {
	matched, byKind, err := matching(r.Types, name)
	switch {
	case err != nil:
		return "", err
	case !byKind:
		return name, nil
	case len(matched) > 1:
		return "", fmt.Errorf("%q: several types have this kind: use %s or %s", name, matched[0].Resource.String(),
			matched[1].Resource.String())
	}
	return matched[0].Resource.String(), nil
}

// Select returns the parked objects that a request selects. It returns an error if the type is not served, or if it is
// unknown whether the object is parked, because not all parked objects of the type are listed.
func Select(r *status.Replica, wanted status.RetryRequest) (status.Parked, error) {
	if wanted.Type == "" {
		return r.Parked, nil
	}
	matched, _, err := matching(r.Types, wanted.Type)
	if err != nil {
		return status.Parked{}, err
	}
	selected := status.Parked{Objects: []status.ParkedObject{}}
	listed, parked := 0, 0
	for _, t := range matched {
		parked += t.Parked
	}
	for _, o := range r.Parked.Objects {
		if !slices.ContainsFunc(matched, func(t *status.Type) bool { return t.Resource == o.Resource }) {
			continue
		}
		listed++
		if wanted.Name == "" || wanted.Name == o.Name && (o.Namespace == "" || o.Namespace == wanted.Namespace) {
			selected.Objects = append(selected.Objects, o)
		}
	}
	selected.Total = len(selected.Objects)
	switch {
	case wanted.Name == "":
		selected.Total = max(selected.Total, parked)
	case selected.Total == 0 && parked > listed:
		return status.Parked{}, fmt.Errorf("only %d of %d parked objects are listed, and %s/%s is not one of them: "+
			"it is unknown whether it is parked", listed, parked, wanted.Type, wanted.Name)
	}
	return selected, nil
}

// Complete returns the types with parked objects or, after a slash, TYPE/NAME of the listed objects in the namespace.
func Complete(r *status.Replica, word, namespace string) (words []string) {
	typeName, _, hasType := strings.Cut(word, "/")
	if !hasType {
		for i := range r.Types {
			if t := &r.Types[i]; t.Parked > 0 {
				words = append(words, strings.TrimSuffix(t.Resource.Resource+"."+t.Group, "."))
			}
		}
		return words
	}
	matched, _, err := matching(r.Types, typeName)
	if err != nil {
		return nil
	}
	for _, o := range r.Parked.Objects {
		if (o.Namespace == "" || o.Namespace == namespace) &&
			slices.ContainsFunc(matched, func(t *status.Type) bool { return t.Resource == o.Resource }) {
			words = append(words, typeName+"/"+o.Name)
		}
	}
	return words
}
