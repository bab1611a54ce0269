#include "check.h"
#include "os/status.h"
#include "plan/ir.h"
int main(void) {
  for (int i = 0; i < algo_table_length; i++) {
    lwcc_plan *p = NULL;
    char text[100000];
    CHECK(plan_build(algo_table[i].algo, 1, 6, &p) == LWCC_OK, "%s", os_error());
    plan_print(p, text, sizeof text);
    puts(text);
    plan_free(p);
  }
  return check_report();
}
