// Package platform serves Blueprints: it makes their types, and of each instance what its Blueprint says.
//
// It is made of two engines and two halves. The engine of definitions serves Blueprints on every replica and writes
// nothing: it compiles them, decides which of them has a type, and starts and stops types on the engine of instances, whose
// watches run on every replica too. So a standby is as warm as the leader, and promotion asks the API server for nothing.
// The engine of instances reconciles on the leader alone: instances, and Blueprints a second time, to write what follows
// from what was decided.
//
//	            every replica                                 the leader
//	Blueprint ─▶ decide: claim, compile, rights ─▶ registry ─▶ keep: CustomResourceDefinition, status, end
//	                            │
//	                            └─ start, swap, stop ─▶ instances ─▶ children, status
//
// A Blueprint's type is made by the platform, or named. What the platform made carries the Blueprint's name and UID,
// and nothing that has neither is ever changed: a Blueprint that is restored has the name and another UID. Of two
// Blueprints that claim one type the older has it.
//
// Instances may become instances of other Blueprints, which may make each other in a circle, or many of many. So each
// instance has an allowance, how many objects it may become. It is 16,384. Children that may be instances, for their type
// has a CustomResourceDefinition, share half of their instance's, and have their share in an annotation. Of an instance
// whose Blueprint has more resources than its allowance nothing is made. So of one instance come at most 32,768 objects, at
// all levels together.
//
// What templates are checked against are the CustomResourceDefinitions that are watched, and for kinds that have none what the
// API server publishes. While that cannot be read less is checked, and mistakes show when an instance is applied; it is
// looked at again every 30 s.
//
// # When a Blueprint is deleted
//
// With the deletion policy Retain, which is the default, its type, the instances and their children stay as they are, and
// are nobody's: the platform takes its finalizer off the instances, so that they can be deleted, but then children outside
// their namespace stay behind. A Blueprint of the same name that is made later takes all of it over.
//
// With Delete, instances get no children any more; all that were there are deleted, each when its children are gone (in the
// foreground), and then the type, if the platform made it. What was made meanwhile goes with the type.
//
// # Rights
//
// What the platform may do with the types of instances and of children is for whoever runs it to decide. A Blueprint that
// takes more is refused, with the missing right in its status, and looked at again.
package platform
