// Package metrics tells Prometheus what a DynamicController does. There is a series a served type, and none of a type
// that is no longer served.
//
//	dynamic_controller_reconciles_total{group,version,resource,outcome}   calls of handlers, by how they ended
//	dynamic_controller_reconcile_duration_seconds{group,version,resource} how long they took
//	dynamic_controller_objects{group,version,resource}                    objects in the cache
//	dynamic_controller_queue_items{group,version,resource,lane}           objects that wait: live, background, delayed
//	dynamic_controller_queue_oldest_seconds{group,version,resource}       how long the first in line has waited
//	dynamic_controller_handlers_running{group,version,resource}           handlers that run
//	dynamic_controller_objects_failing{group,version,resource}            objects that will be retried
//	dynamic_controller_objects_parked{group,version,resource}             objects that wait for something to happen to them
//	dynamic_controller_type_state{group,version,resource,state}           1 for the state that the type is in
package metrics
