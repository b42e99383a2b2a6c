"""Times in the console: to the second, in an order that sorts, with their zone."""

DATE_FORMAT = "Y-m-d"
DATETIME_FORMAT = "Y-m-d H:i:s e"
SHORT_DATETIME_FORMAT = "Y-m-d H:i:s"
