# Copyright (c) mmib contributors. All rights reserved.
