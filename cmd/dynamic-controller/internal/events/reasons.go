package events

import corev1 "k8s.io/api/core/v1"

// Reason identifies what happened. The reasons are documented in docs/reference.md.
type Reason string

// Event reasons for Blueprints.
const (
	Accepted            Reason = "Accepted"
	Rejected            Reason = "Rejected"
	Served              Reason = "Served"
	RolloutStopped      Reason = "RolloutStopped"
	InstancesLeftBehind Reason = "InstancesLeftBehind"
)

// Event reasons for instances.
const (
	ChildrenApplied   Reason = "ChildrenApplied"
	ChildrenDeleted   Reason = "ChildrenDeleted"
	ChildrenRecreated Reason = "ChildrenRecreated"
	Ready             Reason = "Ready"
	Failed            Reason = "Failed"
)

// Parked is the reason for events about objects that are no longer retried.
const Parked Reason = "Parked"

// meaning contains the fields of an event that are determined by its reason.
type meaning struct{ eventType, action string }

// meanings maps each reason to its meaning.
var meanings = map[Reason]meaning{
	Accepted:            {corev1.EventTypeNormal, "Validate"},
	Rejected:            {corev1.EventTypeWarning, "Validate"},
	Served:              {corev1.EventTypeNormal, "Serve"},
	RolloutStopped:      {corev1.EventTypeWarning, "RollOut"},
	InstancesLeftBehind: {corev1.EventTypeWarning, "Delete"},
	ChildrenApplied:     {corev1.EventTypeNormal, "Apply"},
	ChildrenDeleted:     {corev1.EventTypeNormal, "Delete"},
	ChildrenRecreated:   {corev1.EventTypeNormal, "Recreate"},
	Ready:               {corev1.EventTypeNormal, "Reconcile"},
	Failed:              {corev1.EventTypeWarning, "Reconcile"},
	Parked:              {corev1.EventTypeWarning, "Reconcile"},
}
